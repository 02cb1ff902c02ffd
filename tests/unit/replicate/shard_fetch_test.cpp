// Goal:   recovery gets exactly the bytes that were agreed on, from as many holders as it takes,
//         and a holder whose copy has rotted learns of it.
// Method: real asker and holder over the simulated network, with flips, cuts, rotten memory and a
//         second holder.
#include "transfer_scene.hpp"

namespace ckpt::replicate {

namespace {

using test::Bytes;
using test::Shard;
using test::StreamFault;
using test::TransferScene;

struct FetchScene : TransferScene {
  explicit FetchScene(std::shared_ptr<Shard> held, std::uint64_t seed = 1) : TransferScene(seed) {
    provider.shard = std::move(held);
    connect();
  }
  Result<std::shared_ptr<const format::ShardRecord>> record_of(const Shard& shard) {
    return pair.run(fetch_record(*at_a, pair.clock, shard.record->id, shard.digest, options()));
  }
};

// Takes five seconds for everything.
class SlowCompute final : public Compute {
 public:
  explicit SlowCompute(Clock& clock) : clock_(clock) {}
  Task<void> run(std::function<void()> work) override {
    ++in_flight;
    ++runs;
    CKPT_CO_CHECK(co_await sleep_until(clock_, clock_.after(std::chrono::seconds(5))));
    work();
    --in_flight;
    co_return Status();
  }
  int in_flight = 0;
  int runs = 0;

 private:
  Clock& clock_;
};

}  // namespace

TEST_CASE("fetch: the record first, then exactly its bytes", "[unit][replicate]") {
  const auto shard = std::make_shared<Shard>(GENERATE(1, 2, 9, 200), 4 * page_bytes);
  FetchScene scene(shard);
  const auto record = scene.record_of(*shard);
  REQUIRE(record);
  REQUIRE(digest_of(**record) == shard->digest);
  Bytes target((*record)->bytes);
  ChunkSet have((*record)->chunk_crcs.size());
  REQUIRE(scene.fetch(*shard, target, have));
  REQUIRE(target == *shard->memory);
  REQUIRE(have.is_full());
  // And the connection goes on.
  REQUIRE(scene.record_of(*shard));
}

TEST_CASE("fetch: a shard that is not held is not found, and the connection goes on",
          "[unit][replicate]") {
  const auto shard = std::make_shared<Shard>(3);
  FetchScene scene(shard);
  const Shard other(3, page_bytes, 77);
  const auto record = scene.record_of(other);
  REQUIRE_FALSE(record);
  REQUIRE(record.error().code() == Errc::not_found);
  Bytes target(other.record->bytes);
  ChunkSet have(3);
  REQUIRE(scene.record_of(*shard));
  const Status fetched = scene.fetch(other, target, have);
  REQUIRE_FALSE(fetched);
  REQUIRE(fetched.error().code() == Errc::not_found);
}

TEST_CASE("fetch: only the missing chunks are sent", "[unit][replicate]") {
  const auto shard = std::make_shared<Shard>(10);
  FetchScene scene(shard);
  Bytes target = *shard->memory;
  ChunkSet have(10);
  for (const std::size_t index : {0u, 2u, 3u, 9u}) have.insert(index);
  std::fill_n(target.begin() + page_bytes, page_bytes, std::byte(0));
  const std::uint64_t before = scene.pair.network.bytes_delivered("B", "A");
  REQUIRE(scene.fetch(*shard, target, have));
  REQUIRE(target == *shard->memory);
  REQUIRE(scene.pair.network.bytes_delivered("B", "A") - before ==
          6 * (page_bytes + wire::frame_header_bytes));
}

TEST_CASE("fetch: a holder whose copy has rotted says so, and another serves the rest",
          "[unit][replicate]") {
  const std::size_t rotten = GENERATE(as<std::size_t>(), 0, 4, 99);
  const Shard shard(100);
  const auto held = std::make_shared<Shard>(100);
  (*held->memory)[rotten * page_bytes + 1] ^= std::byte(1);
  FetchScene scene(held);
  Bytes target(shard.record->bytes);
  ChunkSet have(100);
  const Status fetched = scene.fetch(shard, target, have);
  REQUIRE_FALSE(fetched);
  REQUIRE(fetched.error().code() == Errc::corruption);
  REQUIRE(scene.provider.damaged_chunks == std::vector<std::size_t>{rotten});
  REQUIRE(have.count() == rotten);
  FetchScene other(std::make_shared<Shard>(100));
  REQUIRE(other.fetch(shard, target, have));
  REQUIRE(target == *shard.memory);
}

TEST_CASE("fetch: a flip of any byte is detected, and what arrived before is kept",
          "[unit][replicate]") {
  const auto shard = std::make_shared<Shard>(2);
  FetchScene measured(shard);
  Bytes scratch(shard->record->bytes);
  ChunkSet all(2);
  REQUIRE(measured.fetch(*shard, scratch, all));
  for (const bool forth : {true, false}) {
    StreamFault fault;
    fault.from = forth ? "A" : "B";
    fault.to = forth ? "B" : "A";
    const std::uint64_t size = measured.pair.network.bytes_delivered(fault.from, fault.to);
    for (fault.offset = 0; fault.offset < size; fault.offset += forth ? 1 : 13) {
      FetchScene scene(shard, fault.offset);
      scene.pair.network.inject(fault);
      Bytes target(shard->record->bytes);
      ChunkSet have(2);
      const Status fetched = scene.fetch(*shard, target, have);
      INFO(fault.from << " byte " << fault.offset << " of " << size);
      // Flips in the asker's acknowledgements cost it nothing: it has verified what it has.
      REQUIRE((!fetched || (forth && target == *shard->memory)));
      scene.connect();
      REQUIRE(scene.fetch(*shard, target, have));
      REQUIRE(target == *shard->memory);
    }
  }
}

TEST_CASE("fetch: a holder that falls silent is given up after the stall deadline",
          "[unit][replicate]") {
  const auto shard = std::make_shared<Shard>(50);
  FetchScene scene(shard);
  Bytes target(shard->record->bytes);
  const ChunkSet have(50);
  std::size_t arrived = 0;
  TransferOptions options = scene.options();
  options.on_chunk = [&arrived](std::size_t) { ++arrived; };
  auto fetching = test::start(
      scene.pair.context,
      fetch_shard(*scene.at_a, scene.pair.clock, shard->record, std::span(target), have, options));
  while (arrived == 0) REQUIRE(scene.pair.clock.advance_to_next());
  scene.pair.network.partition("A", "B");
  const Time before = scene.pair.clock.now();
  const Status fetched = test::finish(scene.pair.clock, std::move(fetching));
  REQUIRE_FALSE(fetched);
  REQUIRE(fetched.error().code() == Errc::unavailable);
  REQUIRE(scene.pair.clock.now() - before <= scene.stall);
  REQUIRE_FALSE(scene.service_end());
}

TEST_CASE("fetch: when it has failed, nobody reads its memory any more", "[unit][replicate]") {
  const auto shard = std::make_shared<Shard>(640, 4 * MiB);
  StreamFault fault;
  fault.from = "B";
  fault.to = "A";
  fault.kind = StreamFault::Kind::reset;
  fault.offset = GENERATE(as<std::uint64_t>(), MiB + 400'000, 2 * MiB + 400'000);
  FetchScene scene(shard);
  scene.pair.network.inject(fault);
  SlowCompute compute(scene.pair.clock);
  Bytes target(shard->record->bytes);
  TransferOptions options = scene.options();
  options.compute = &compute;
  auto fetching = test::start(scene.pair.context,
                              fetch_shard(*scene.at_a, scene.pair.clock, shard->record,
                                          std::span(target), ChunkSet(1), std::move(options)));
  while (compute.in_flight == 0) REQUIRE(scene.pair.clock.advance_to_next());
  REQUIRE_FALSE(test::finish(scene.pair.clock, std::move(fetching)));
  REQUIRE(compute.in_flight == 0);
}

TEST_CASE("fetch: a holder computes no checksum of what its asker accepts", "[unit][replicate]") {
  const auto shard = std::make_shared<Shard>(4, page_bytes);
  FetchScene scene(shard);
  SlowCompute compute(scene.pair.clock);
  scene.service_compute = &compute;
  scene.connect();
  Bytes target(shard->record->bytes);
  ChunkSet have(4);
  REQUIRE(scene.fetch(*shard, target, have));
  REQUIRE(target == *shard->memory);
  REQUIRE(compute.runs == 0);
}

TEST_CASE("fetch: a flip on the way costs the holder no good copy", "[unit][replicate]") {
  const auto shard = std::make_shared<Shard>(20);
  StreamFault fault;
  fault.from = "B";
  fault.to = "A";
  fault.offset = 5 * page_bytes;
  FetchScene scene(shard);
  SlowCompute compute(scene.pair.clock);
  scene.service_compute = &compute;
  scene.connect();
  scene.pair.network.inject(fault);
  Bytes target(shard->record->bytes);
  ChunkSet have(20);
  const Status fetched = scene.fetch(*shard, target, have);
  REQUIRE_FALSE(fetched);
  REQUIRE(fetched.error().code() == Errc::corruption);
  REQUIRE_FALSE(scene.service_end());
  CHECK(compute.runs > 0);  // It has looked.
  CHECK(scene.provider.damaged_chunks.empty());
}

TEST_CASE("fetch: a holder that loses its asker looks at what was not acknowledged",
          "[unit][replicate]") {
  const auto shard = std::make_shared<Shard>(4);
  FetchScene scene(shard);
  (*shard->memory)[7] ^= std::byte(1);
  wire::Message request;
  request.kind = wire::FrameKind::fetch;
  request.ticket = 1;
  request.body = encode(CopyName{shard->record->id, shard->digest});
  const Bytes nothing = ChunkSet(4).encode();
  request.body.insert(request.body.end(), nothing.begin(), nothing.end());
  REQUIRE(scene.pair.run(wire::write_message(*scene.at_a, request, no_deadline)));
  Bytes first_chunk(wire::frame_header_bytes + page_bytes);
  REQUIRE(scene.pair.run(scene.at_a->read(first_chunk, no_deadline)));
  REQUIRE(scene.pair.run(wire::read_header(*scene.at_a, no_deadline)));
  scene.at_a->close();
  REQUIRE_FALSE(scene.service_end());
  REQUIRE(scene.provider.damaged_chunks == std::vector<std::size_t>{0});
}

TEST_CASE("fetch: requests that lie are refused", "[unit][replicate]") {
  const auto shard = std::make_shared<Shard>(10);
  const std::size_t cut = GENERATE(as<std::size_t>(), 1, 2, 5, 6, 7, 30, 42);
  FetchScene scene(shard);
  wire::Message request;
  request.kind = wire::FrameKind::fetch;
  request.body = test::bytes_from(cut, 42 - cut);
  REQUIRE(scene.pair.run(wire::write_message(*scene.at_a, request, no_deadline)));
  const auto answer = scene.pair.run(wire::read_message(*scene.at_a, no_deadline));
  REQUIRE(answer);
  REQUIRE(answer->kind == wire::FrameKind::refuse);
  REQUIRE(scene.record_of(*shard));
}

TEST_CASE("fetch: a record that is not the agreed one is refused by the asker",
          "[unit][replicate]") {
  test::SimPair pair;
  const auto joined = pair.join();
  const Shard asked(3);
  const Shard other(3, page_bytes, 5);
  auto asking = test::start(
      pair.context, fetch_record(*joined.at_a, pair.clock, asked.record->id, asked.digest, {}));
  REQUIRE(pair.run(wire::read_message(*joined.at_b, no_deadline)));
  wire::Message answer;
  answer.kind = wire::FrameKind::record;
  answer.body = encode(*other.record);
  REQUIRE(pair.run(wire::write_message(*joined.at_b, answer, no_deadline)));
  const auto record = test::finish(pair.clock, std::move(asking));
  REQUIRE_FALSE(record);
  REQUIRE(record.error().code() == Errc::corruption);
}

}  // namespace ckpt::replicate
