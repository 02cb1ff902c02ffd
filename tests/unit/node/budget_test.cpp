// Goal:   a budget that is too small for a rank's Slots is reported with the numbers that help,
//         and a layout that fits again is captured as before.
// Method: an engine with a budget for one Slot and a half; a layout comes that needs three.
//         A layout that cannot have its Slots between two that can.
#include <boost/asio/io_context.hpp>

#include "base/units.hpp"
#include "node/engine.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "support/sim_network.hpp"
#include "unit/node/one_rank.hpp"
#include "unit/node/rank.hpp"

namespace ckpt::node {

TEST_CASE("budget: all of a rank's Slots together are what does not fit", "[unit][node]") {
  asio::io_context context;
  test::FakeClock clock(context);
  test::NoMemory memory;  // Asked for nothing, since not all of it is there.
  test::MemoryDisk disk(1);
  test::MemoryFileSystem files(disk, &clock);
  test::SimNetwork network(1);
  const auto front = network.add_node("A", clock);
  EngineOptions options;
  options.name = "A";
  options.memory_budget = 96 * MiB;
  Engine engine(context.get_executor(), Seams{clock, memory, files, *front}, options);

  test::Rank rank;
  AttachRequest request;
  request.job = "job";
  request.nodes = {{"A", "", ""}};
  request.node = "A";
  request.own_slots = 3;
  auto attached = test::finish(clock, test::start(context, engine.attach(request, rank)));
  REQUIRE(attached);
  const format::TensorSpec weight{
      "weight", DType::u8, {64 * static_cast<std::int64_t>(MiB)}, "", ""};
  const auto layout = format::make_layout(std::span(&weight, 1), 0, 0).value();
  REQUIRE(engine.call(attached->session, control::SetLayout{layout}));
  clock.advance(std::chrono::seconds(1));

  REQUIRE(rank.no_slots);
  REQUIRE(rank.no_slots->code() == Errc::exhausted);
  const std::string text = rank.no_slots->text();
  INFO(text);
  REQUIRE(text.find("3 Slots of 64.0 MiB for job job rank 0 need 192.0 MiB, may use 96.0 MiB") !=
          std::string::npos);
  REQUIRE(test::finish(clock, test::start(context, engine.stop(std::chrono::seconds(5)))));
  clock.advance(std::chrono::seconds(10));
}

TEST_CASE("budget: a layout that fits no more leaves the Slots to the one before", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.may_lack_slots = true;
  REQUIRE(rank.begin_fresh());
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  const std::size_t times_ready = rank.times_ready;

  SECTION("over the budget") {
    REQUIRE(rank.tell_layout(8 * MiB, 2));
  }
  SECTION("no memory, when one of them is made") {
    rank.memory.allocations_left = 1;
    REQUIRE(rank.tell_layout(1 * MiB, 2));
  }
  REQUIRE(rank.pass_until([&] { return rank.no_slots.has_value(); }));
  CHECK(rank.no_slots->code() == Errc::exhausted);
  rank.memory.allocations_left.reset();
  REQUIRE(rank.tell_layout(3 * KiB, 3));
  REQUIRE(rank.pass_until([&] { return rank.times_ready > times_ready; }));
  REQUIRE(rank.pass_until([&] { return rank.granted.size() >= 2; }));
  rank.capture(Step{2});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{2}; }));
  // Memory for the larger ones was given back.
  CHECK(rank.engine->status_json().find("\"used_bytes\": 32768") != std::string::npos);
}

TEST_CASE("budget: a step that the Slots do not hold, and larger ones cannot be had, is exhausted",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  {
    test::OneRank rank(disk, 3 * MiB);
    rank.begin_and_store_two_steps();
  }
  test::OneRank rank(disk);
  rank.may_lack_slots = true;
  rank.request.own_slots = 8;
  REQUIRE(rank.attach());
  REQUIRE(rank.pass_until([&] { return rank.times_ready > 0; }));
  REQUIRE(rank.tell_layout(3 * MiB, 2));  // Eight of them are over the budget.
  REQUIRE(rank.pass_until([&] { return rank.no_slots.has_value(); }));
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{1, std::nullopt}));
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
  REQUIRE_FALSE(rank.answer->result);
  CHECK(rank.answer->result.error().code() == Errc::exhausted);
  CHECK(rank.answer->result.error().text().find("may use 16.0 MiB") != std::string::npos);
}

}  // namespace ckpt::node
