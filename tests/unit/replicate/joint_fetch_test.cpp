// Goal:   a shard comes from all its holders at once, each Chunk from one of them, and holders that
//         are gone, hang or have damaged copies cost time only.
// Method: one asker and some holders over the simulated network, where each holder counts what it
//         sends, and may lack the shard, hold a damaged copy, or fall silent.
#include "replicate/joint_fetch.hpp"

#include <set>

#include "base/spawn.hpp"

#include "base/started.hpp"
#include "transfer_scene.hpp"

namespace ckpt::replicate {

namespace {

using test::Bytes;
using test::Shard;

constexpr std::size_t chunks = 200;

struct Holder {
  std::string name;
  std::unique_ptr<wire::Network> front;
  std::unique_ptr<wire::Listener> listener;
  test::Sink sink;
  test::Provider provider;
  int connections = 0;
};

DetachedTask serve(Clock& clock, Holder& holder) {
  for (;;) {
    auto accepted = co_await holder.listener->accept();
    if (!accepted) co_return;
    ++holder.connections;
    wire::PeerIdentity peer;
    peer.job = "gpt2";
    peer.node = "asker";
    ServiceOptions options;
    const asio::any_io_executor executor = co_await asio::this_coro::executor;
    Started<void> serving(executor, clock,
                          serve_peer(std::move(*accepted), clock, std::move(peer), holder.sink,
                                     holder.provider, std::move(options)));
  }
}

struct Cluster {
  explicit Cluster(const std::vector<std::string>& names) : clock(context), network(1) {
    test::SimNetworkOptions options;
    options.bytes_per_second = 1 << 20;  // Else one holder may be done before another is reached.
    network.set_options(options);
    asker = network.add_node("asker", clock);
    for (const std::string& name : names) {
      Holder& holder = holders[name];
      holder.name = name;
      holder.front = network.add_node(name, clock);
      holder.provider.shard = std::make_shared<Shard>(chunks);
      auto listening =
          test::finish(clock, test::start(context, holder.front->listen(name + ":1", no_deadline)));
      REQUIRE(listening);
      holder.listener = std::move(*listening);
      run_detached(context.get_executor(), serve(clock, holder));
    }
  }
  ~Cluster() {
    for (auto& [name, holder] : holders) holder.listener->close();
    clock.advance(std::chrono::minutes(20));  // Services see the end of their connections.
  }

  test::Pending<void> begin_fetch(ChunkSet unwanted, Destination into) {
    std::vector<std::string> names;
    for (const auto& [name, holder] : holders) names.push_back(name);
    TransferOptions options;
    options.on_chunk = [this](std::size_t index) { REQUIRE(have.insert(index)); };
    DialHolder dial = [this](const std::string& name) {
      return asker->connect(name + ":1", clock.after(std::chrono::seconds(3)));
    };
    return test::start(context,
                       fetch_jointly(std::move(names), std::move(dial), clock, shard.record,
                                     std::move(into), std::move(unwanted), std::move(options)));
  }
  Status fetch(ChunkSet unwanted = ChunkSet(chunks)) {
    return fetch(std::move(unwanted), std::span(target));
  }
  Status fetch(ChunkSet unwanted, Destination into) {
    return test::finish(clock, begin_fetch(std::move(unwanted), std::move(into)));
  }

  std::uint64_t sent_by(const std::string& name) const {
    return network.bytes_delivered(name, "asker");
  }
  bool is_whole() const { return have.is_full() && target == *shard.memory; }

  asio::io_context context;
  test::FakeClock clock;
  test::SimNetwork network;
  std::unique_ptr<wire::Network> asker;
  std::map<std::string, Holder> holders;
  const Shard shard{chunks};
  Bytes target = Bytes(shard.record->bytes);
  ChunkSet have{chunks};
};

constexpr std::uint64_t all_data = chunks * (page_bytes + wire::frame_header_bytes);

}  // namespace

TEST_CASE("joint fetch: Chunks that nobody wants are not asked for", "[unit][replicate]") {
  Cluster cluster({"A", "B"});
  ChunkSet unwanted(chunks);
  for (std::size_t index = 0; index < chunks; ++index)
    if (index != 1 && index + 1 != chunks) unwanted.insert(index);
  const Status fetched = cluster.fetch(unwanted);
  REQUIRE((fetched ? "" : fetched.error().message()) == "");
  CHECK(cluster.have.count() == 2);
  CHECK(cluster.have.contains(1));
  CHECK(cluster.have.contains(chunks - 1));
  const std::uint64_t sent = cluster.sent_by("A") + cluster.sent_by("B");
  CHECK(sent < 3 * (page_bytes + wire::frame_header_bytes));
}

namespace {

Task<void> checked() {
  co_return Status();
}

}  // namespace

TEST_CASE("joint fetch: chunks come to places of their own, in two parts", "[unit][replicate]") {
  Cluster cluster({"b", "c"});
  cluster.holders.at("c").provider.shard->memory->at(7 * page_bytes) ^= std::byte{1};
  Bytes memory(2 * cluster.target.size());  // The second half of a Chunk before its first one.
  const auto half_of = [&](std::size_t index, std::size_t half) {
    return std::span(memory).subspan((2 * index + 1 - half) * page_bytes, page_bytes / 2);
  };
  const auto source_of = [&](std::size_t index, std::size_t half) {
    return std::span(*cluster.shard.memory)
        .subspan(index * page_bytes + half * page_bytes / 2, page_bytes / 2);
  };
  std::set<std::size_t> placed;
  Destination target(
      [&](std::size_t index) { return Destination::Places{half_of(index, 0), half_of(index, 1)}; },
      [&](std::size_t index, std::vector<Crc32> crcs) {
        CHECK(placed.insert(index).second);
        REQUIRE(crcs.size() == 2);
        for (std::size_t half = 0; half < 2; ++half)
          CHECK(crcs[half] == crc32(source_of(index, half)));
        return checked();
      });
  const Status fetched = cluster.fetch(ChunkSet(chunks), std::move(target));
  REQUIRE((fetched ? "" : fetched.error().message()) == "");
  REQUIRE(placed.size() == chunks);
  for (std::size_t index = 0; index < chunks; ++index) {
    for (std::size_t half = 0; half < 2; ++half) {
      REQUIRE(std::ranges::equal(half_of(index, half), source_of(index, half)));
    }
  }
}

TEST_CASE("joint fetch: from one holder, over two connections", "[unit][replicate]") {
  Cluster cluster({"b"});
  REQUIRE(cluster.fetch());
  CHECK(cluster.is_whole());
  CHECK(cluster.holders.at("b").connections == 2);
  CHECK(cluster.sent_by("b") == all_data);
}

TEST_CASE("joint fetch: all holders send, and each chunk comes once", "[unit][replicate]") {
  Cluster cluster({"b", "c", "d"});
  REQUIRE(cluster.fetch());
  CHECK(cluster.is_whole());
  std::uint64_t sent = 0;
  for (const auto& [name, holder] : cluster.holders) {
    CHECK(cluster.sent_by(name) > all_data / 8);
    sent += cluster.sent_by(name);
  }
  CHECK(sent == all_data);
}

TEST_CASE("joint fetch: a holder without the shard leaves all to the other", "[unit][replicate]") {
  Cluster cluster({"b", "c"});
  cluster.holders.at("b").provider.shard = nullptr;
  REQUIRE(cluster.fetch());
  CHECK(cluster.is_whole());
  CHECK(cluster.holders.at("b").connections <= 2);
}

TEST_CASE("joint fetch: the next holders are asked, and none that has failed",
          "[unit][replicate]") {
  Cluster cluster({"b", "c", "d", "e", "f"});
  for (const char* name : {"b", "c"}) cluster.holders.at(name).provider.shard = nullptr;
  REQUIRE(cluster.fetch());
  CHECK(cluster.is_whole());
  for (const char* name : {"b", "c"}) CHECK(cluster.holders.at(name).connections == 1);
  CHECK(cluster.sent_by("f") > all_data / 16);
}

TEST_CASE("joint fetch: a damaged copy costs nothing but the way to another one",
          "[unit][replicate]") {
  Cluster cluster({"b", "c"});
  for (const std::size_t damaged : {0, 60, 199})
    (*cluster.holders.at("b").provider.shard->memory)[damaged * page_bytes] ^= std::byte(1);
  REQUIRE(cluster.fetch());
  CHECK(cluster.is_whole());
  CHECK_FALSE(cluster.holders.at("b").provider.damaged_chunks.empty());
}

TEST_CASE("joint fetch: a holder that dies or hangs leaves its chunks to the other",
          "[unit][replicate]") {
  const bool dies = GENERATE(true, false);
  Cluster cluster({"b", "c"});
  auto fetching = cluster.begin_fetch(ChunkSet(chunks), std::span(cluster.target));
  while (cluster.have.count() < chunks / 4) REQUIRE(cluster.clock.advance_to_next());
  if (dies) {
    cluster.network.reset_streams("b", "asker");
  } else {
    cluster.network.partition("b", "asker");
  }
  REQUIRE(test::finish(cluster.clock, std::move(fetching)));
  CHECK(cluster.is_whole());
}

TEST_CASE("joint fetch: one that cannot be reached is not waited for", "[unit][replicate]") {
  Cluster cluster({"b", "c"});
  cluster.network.partition("b", "asker");
  const Time began = cluster.clock.now();
  REQUIRE(cluster.fetch());
  CHECK(cluster.is_whole());
  CHECK(cluster.clock.now() - began < std::chrono::seconds(2));
}

TEST_CASE("joint fetch: copies that are damaged in different chunks make a good one",
          "[unit][replicate]") {
  Cluster cluster({"b", "c"});
  const auto damage = [&](const char* holder, std::size_t chunk) {
    cluster.holders.at(holder).provider.shard->memory->at(chunk * page_bytes) ^= std::byte{1};
  };
  for (const std::size_t chunk : {0, 5, 60, 199}) damage("b", chunk);
  for (const std::size_t chunk : {1, 4, 61, 198}) damage("c", chunk);
  SECTION("all of its chunks") {
    const Status fetched = cluster.fetch();
    REQUIRE((fetched ? "" : fetched.error().message()) == "");
    CHECK(cluster.is_whole());
  }
  SECTION("but for one that is good in none") {
    damage("b", 100);
    damage("c", 100);
    const Status fetched = cluster.fetch();
    REQUIRE_FALSE(fetched);
    CHECK(fetched.error().code() == Errc::corruption);
    CHECK(cluster.have.count() == chunks - 1);
  }
}

TEST_CASE("joint fetch: a copy that is bad all over is not asked for each chunk",
          "[unit][replicate]") {
  Cluster cluster({"b"});
  for (std::size_t chunk = 0; chunk < chunks; ++chunk)
    cluster.holders.at("b").provider.shard->memory->at(chunk * page_bytes) ^= std::byte{1};
  CHECK_FALSE(cluster.fetch());
  CHECK(cluster.have.count() == 0);
  CHECK(cluster.holders.at("b").connections < 20);
}

TEST_CASE("joint fetch: without a good copy it fails, and names each holder", "[unit][replicate]") {
  Cluster cluster({"b", "c"});
  cluster.holders.at("b").provider.shard = nullptr;
  (*cluster.holders.at("c").provider.shard->memory)[0] ^= std::byte(1);
  const Status fetched = cluster.fetch();
  REQUIRE_FALSE(fetched);
  CHECK(fetched.error().code() == Errc::corruption);
  CHECK_THAT(fetched.error().message(), Catch::Contains("node b: not found"));
  CHECK_THAT(fetched.error().message(), Catch::Contains("node c: corruption"));
  // Chunks of the damaged copy that arrived before, or over its other connection, are verified.
  CHECK_FALSE(cluster.have.contains(0));
}

TEST_CASE("joint fetch: a holder that put its damaged copy aside counts as damaged",
          "[unit][replicate]") {
  HolderFailures failures;
  failures.add("b", Error(Errc::not_found, "not here"));  // Over its other connection.
  failures.add("b", Error(Errc::corruption, "chunk 3"));
  failures.add("b", Error(Errc::unavailable, "closed"));
  CHECK(failures.error().code() == Errc::corruption);
}

TEST_CASE("joint fetch: where nobody has it, it is not found", "[unit][replicate]") {
  Cluster cluster({"b", "c"});
  for (auto& [name, holder] : cluster.holders) holder.provider.shard = nullptr;
  const Status fetched = cluster.fetch();
  REQUIRE_FALSE(fetched);
  CHECK(fetched.error().code() == Errc::not_found);
}

}  // namespace ckpt::replicate
