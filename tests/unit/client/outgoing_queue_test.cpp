// Goal:   what waits for a daemon that does not read stays small, in order, and means the same.
// Method: push the messages of a trainer that speaks faster than they go out, and look at what is
//         left.
#include "client/outgoing_queue.hpp"

#include <catch2/catch.hpp>

namespace ckpt::client {
namespace {

namespace control = wire::control;

control::Begin begin(Step step) {
  control::Begin message;
  message.step = step;
  return message;
}

control::Arrived arrived(std::uint32_t slot, std::uint64_t bytes, std::uint64_t generation = 1) {
  control::Arrived message;
  message.slot = slot;
  message.generation = generation;
  message.bytes = bytes;
  return message;
}

}  // namespace

TEST_CASE("outgoing queue: the newest of many skipped steps waits", "[unit][client]") {
  OutgoingQueue queue;
  for (std::uint64_t step = 1; step <= 100'000; ++step)
    REQUIRE(queue.push(control::Skipped{Step{step}}));
  REQUIRE(queue.push(control::Skipped{Step{7}}));
  REQUIRE(queue.size() == 1);
  REQUIRE(std::get<control::Skipped>(queue.pop()).step == Step{100'000});
  REQUIRE(queue.is_empty());
}

TEST_CASE("outgoing queue: a skipped step keeps its place among the captures", "[unit][client]") {
  OutgoingQueue queue;
  REQUIRE(queue.push(control::Skipped{Step{1}}));
  REQUIRE(queue.push(begin(Step{2})));
  REQUIRE(queue.push(control::Skipped{Step{3}}));
  REQUIRE(queue.size() == 3);
  REQUIRE(std::get<control::Skipped>(queue.pop()).step == Step{1});
  REQUIRE(std::get<control::Begin>(queue.pop()).step == Step{2});
  REQUIRE(std::get<control::Skipped>(queue.pop()).step == Step{3});
}

TEST_CASE("outgoing queue: the newest step time waits, and holds up nothing", "[unit][client]") {
  OutgoingQueue queue;
  control::StepTime steps;
  for (std::uint64_t step = 1; step <= 100'000; ++step) {
    steps.steps = static_cast<std::uint32_t>(step);
    REQUIRE(queue.push(steps));
    REQUIRE(queue.push(control::Skipped{Step{step}}));
  }
  REQUIRE(queue.size() == 2);
  REQUIRE(std::get<control::StepTime>(queue.pop()).steps == 100'000);
  REQUIRE(std::get<control::Skipped>(queue.pop()).step == Step{100'000});
}

TEST_CASE("outgoing queue: the newest of many passed steps waits, and holds up nothing",
          "[unit][client]") {
  OutgoingQueue queue;
  for (std::uint64_t step = 1; step <= 100'000; ++step) {
    REQUIRE(queue.push(control::Passed{Step{step}}));
    REQUIRE(queue.push(control::Skipped{Step{step}}));
  }
  REQUIRE(queue.push(control::Passed{Step{7}}));
  REQUIRE(queue.size() == 2);
  REQUIRE(std::get<control::Passed>(queue.pop()).step == Step{100'000});
}

TEST_CASE("outgoing queue: the bytes that arrived wait once for each Slot", "[unit][client]") {
  OutgoingQueue queue;
  for (std::uint64_t bytes = 1; bytes <= 100'000; ++bytes) REQUIRE(queue.push(arrived(0, bytes)));
  REQUIRE(queue.push(arrived(1, 5)));
  REQUIRE(queue.push(arrived(1, 6, 2)));
  REQUIRE(queue.size() == 3);
  REQUIRE(std::get<control::Arrived>(queue.pop()).bytes == 100'000);
  REQUIRE(std::get<control::Arrived>(queue.pop()).bytes == 5);
  REQUIRE(std::get<control::Arrived>(queue.pop()).bytes == 6);
}

TEST_CASE("outgoing queue: the status is asked once, and what is too much is refused",
          "[unit][client]") {
  OutgoingQueue queue;
  for (std::uint64_t i = 0; i < 2000; ++i) {  // With other messages between.
    REQUIRE(queue.push(control::AskStatus{}));
    REQUIRE(queue.push(arrived(0, i)));
    REQUIRE(queue.push(control::Skipped{Step{i}}));
  }
  REQUIRE(queue.size() == 3);
  while (queue.size() < OutgoingQueue::size_max) REQUIRE(queue.push(control::RestoredOk{Step{1}}));
  REQUIRE_FALSE(queue.push(control::RestoredOk{Step{1}}));
  REQUIRE(queue.size() == OutgoingQueue::size_max);
  queue.clear();
  REQUIRE(queue.push(control::RestoredOk{Step{1}}));
}

}  // namespace ckpt::client
