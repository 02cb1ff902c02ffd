// Goal:   what a coordinator must never take back is noticed when it does.
// Method: one decree, and what may and may not come after it.
#include <catch2/catch.hpp>

#include "agree/successor.hpp"

namespace ckpt {

namespace {

format::Decree first_decree() {
  format::Decree decree;
  decree.sequence = 5;
  decree.committed = format::StepId{2, Step{20}};
  decree.durable = format::StepId{2, Step{10}};
  decree.history = {{1, {}}, {2, format::StepId{1, Step{4}}}};
  format::Start start;
  start.timeline = 2;
  start.outcome = format::StartOutcome::go();
  decree.start = start;
  decree.flush.emplace();
  decree.flush->flush_id = 7;
  decree.flush->writers = {{"A", 0}, {"B", 1}};
  return decree;
}

}  // namespace

TEST_CASE("successor: a later decree may add, and take nothing back", "[unit][agree]") {
  const format::Decree before = first_decree();
  format::Decree after = before;
  CHECK_FALSE(agree::is_successor(before, after));  // It has the same number.
  ++after.sequence;
  CHECK(agree::is_successor(before, after));

  SECTION("a timeline is not forgotten") {
    after.history.push_back({3, {}});
    CHECK(agree::is_successor(before, after));
    after.history.erase(after.history.begin());
    CHECK_FALSE(agree::is_successor(before, after));
  }
  SECTION("a step stays committed, and stored") {
    after.committed = format::StepId{2, Step{19}};
    CHECK_FALSE(agree::is_successor(before, after));
    after.committed = before.committed;
    after.durable.reset();
    CHECK_FALSE(agree::is_successor(before, after));
  }
  SECTION("but not when a Start goes back to an older one") {
    format::Start start = *before.start;
    start.timeline = 3;
    after.start = start;
    after.committed = format::StepId{1, Step{4}};
    after.durable.reset();
    CHECK(agree::is_successor(before, after));
    CHECK_FALSE(agree::is_successor(after, before));
  }
  SECTION("a Start does not give way to an older one, nor to none") {
    format::Start start = *before.start;
    start.timeline = 1;
    after.start = start;
    CHECK_FALSE(agree::is_successor(before, after));
    after.start.reset();
    CHECK_FALSE(agree::is_successor(before, after));
  }
  SECTION("a part's turn keeps its node, and another turn may have another") {
    after.flush->writers[0] = {"C", 1};
    CHECK(agree::is_successor(before, after));
    after.flush->writers[0] = {"C", 0};
    CHECK_FALSE(agree::is_successor(before, after));
    after.flush->flush_id = 8;
    CHECK(agree::is_successor(before, after));
  }
}

}  // namespace ckpt
