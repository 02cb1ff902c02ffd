// Goal:   what peers send comes to a sink, and the engine's thread copies nothing of it.
// Method: a Compute that says whether it is at work, and a sink that asks.
#include "node/peer_chunks.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "support/run_task.hpp"

namespace ckpt::node {
namespace {

class WatchedCompute final : public Compute {
 public:
  Task<void> run(std::function<void()> work) override {
    if (is_full) co_return fail(Errc::exhausted, "the queue is full");
    is_at_work = true;
    work();
    is_at_work = false;
    co_return Status();
  }

  bool is_full = false;
  bool is_at_work = false;
};

struct PeerScene {
  PeerScene() {
    record.bytes = 300;
    record.chunk_bytes = 200;
    record.chunk_crcs.resize(2);
    sink.take = [this](std::size_t index, std::span<const std::byte> bytes) {
      taken.push_back(index);
      passed_on = {bytes.begin(), bytes.end()};
    };
  }
  void copies() {
    sink.copy = [this](std::size_t index, std::span<const std::byte> bytes) {
      CHECK(compute.is_at_work);
      CHECK(index == 1);
      copied = {bytes.begin(), bytes.end()};
    };
  }
  // As a connection does; returns the places.
  replicate::Destination::Places send(std::size_t index) {
    const replicate::Destination target = chunks.destination();
    const auto places = target.places(index, record.chunk(index));
    for (const std::span<std::byte> place : places) std::ranges::fill(place, std::byte{7});
    const Status placed =
        test::run_task(context, target.placed(index, std::vector<Crc32>(places.size(), 5)));
    CHECK(placed.has_value() != compute.is_full);
    return places;
  }

  asio::io_context context;
  format::ShardRecord record;
  gather::ChunkSink sink;
  WatchedCompute compute;
  PeerChunks chunks{record, sink, &compute};
  std::vector<std::size_t> taken;
  std::vector<std::byte> passed_on, copied;
};

}  // namespace

TEST_CASE_METHOD(PeerScene, "peer chunks: a compute copies a chunk that has no places",
                 "[unit][node]") {
  copies();
  const auto places = send(1);
  REQUIRE(places.size() == 1);
  CHECK(places.front().size() == 100);
  CHECK(copied == std::vector<std::byte>(100, std::byte{7}));
  CHECK(taken.empty());
  chunks.take(1);
  CHECK(taken == std::vector<std::size_t>{1});
  CHECK(passed_on.empty());
  copied.clear();
  CHECK(send(1).front().data() == places.front().data());  // The buffer was free again.
}

TEST_CASE_METHOD(PeerScene, "peer chunks: a sink that copies nothing gets the bytes",
                 "[unit][node]") {
  const auto places = send(0);
  chunks.take(0);
  CHECK(passed_on == std::vector<std::byte>(200, std::byte{7}));
}

TEST_CASE_METHOD(PeerScene, "peer chunks: one that lies in its places is not copied",
                 "[unit][node]") {
  std::vector<std::byte> memory(200);
  std::vector<Crc32> sums;
  sink.copy = [](std::size_t, std::span<const std::byte>) { FAIL("a copy"); };
  sink.places = [&](std::size_t) {
    return std::vector{std::span(memory).first(50), std::span(memory).subspan(50)};
  };
  sink.placed = [&](std::size_t, std::span<const Crc32> crcs) {
    sums.assign(crcs.begin(), crcs.end());
  };
  CHECK(send(0).size() == 2);
  CHECK(sums == std::vector<Crc32>{5, 5});
  chunks.take(0);
  CHECK(taken == std::vector<std::size_t>{0});
  CHECK(passed_on.empty());
  CHECK(memory == std::vector<std::byte>(200, std::byte{7}));
}

TEST_CASE_METHOD(PeerScene, "peer chunks: one that no thread has copied has not come",
                 "[unit][node]") {
  copies();
  compute.is_full = true;
  send(1);
  CHECK(copied.empty());
  CHECK(taken.empty());
}

}  // namespace ckpt::node
