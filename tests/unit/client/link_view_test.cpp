// Goal:   a mistake in what we keep of a session is noticed where it is made, not at the next save.
// Method: break each invariant of a view by hand.
#include "client/link_view.hpp"

#include <catch2/catch.hpp>
#include <vector>

#include "base/units.hpp"
#include "support/assertion_trap.hpp"

namespace ckpt::client {
namespace {

std::vector<MappedSlot> one_slot(std::uint64_t generation) {
  static std::vector<std::byte> memory(page_bytes);
  return {{generation, memory, nullptr}};
}

}  // namespace

TEST_CASE("link view: an engine that is away has a reason and no Slots", "[unit][client]") {
  LinkView view;
  view.phase = LinkView::Phase::attached;
  view.check_invariants();
  view.phase = LinkView::Phase::away;
  REQUIRE_TRIPS(view.check_invariants());
  view.end.emplace(Errc::unavailable, "the daemon is gone");
  view.check_invariants();
  (void)view.slots.replace(one_slot(1));
  REQUIRE_TRIPS(view.check_invariants());
  (void)view.lose("the daemon is gone");
  view.check_invariants();
  view.phase = LinkView::Phase::ended;
  REQUIRE_TRIPS((void)view.lose("once more"));
}

TEST_CASE("link view: an answer answers what was asked last", "[unit][client]") {
  LinkView view;
  view.ask = 2;
  control::Begun answer;
  answer.ask = 1;
  (void)view.begin(answer);  // A late one.
  CHECK_FALSE(view.begun);
  answer.ask = 2;
  (void)view.begin(answer);
  CHECK(view.begun);
  view.check_invariants();
  view.ask = 3;
  REQUIRE_TRIPS(view.check_invariants());
}

TEST_CASE("session slots: a grant holds for the mapping that it was given for", "[unit][client]") {
  SessionSlots slots;
  CHECK_FALSE(slots.grant(0));
  (void)slots.replace(one_slot(1));
  CHECK(slots.grant(0));
  CHECK(slots.grant(0));
  slots.check_invariants();
  CHECK(slots.replace(one_slot(2)).granted.size() == 1);
  CHECK_FALSE(slots.has_fitting_grant());
  CHECK(slots.grant(0));
  CHECK(slots.replace(one_slot(2)).granted.empty());
  CHECK(slots.has_fitting_grant());
  slots.check_invariants();
}

TEST_CASE("step levels: a level includes the ones before, and no message is taken twice",
          "[unit][client]") {
  StepLevels levels;
  levels.reached(Step{3}, Level::durable);
  CHECK(levels.has_reached(Step{3}, Level::captured));
  levels.reached(Step{5}, Level::captured);
  levels.check_invariants();
  levels.engine_lost();
  levels.check_invariants();
  CHECK_FALSE(levels.has_reached(Step{5}, Level::captured));
  CHECK(levels.has_reached(Step{3}, Level::committed));

  SkipMessages skips;
  CHECK(skips.add(Step{1}));
  CHECK_FALSE(skips.add(Step{2}));
  skips.check_invariants();
  CHECK(skips.next() == Step{2});
  skips.check_invariants();
  REQUIRE_TRIPS((void)skips.next());
}

}  // namespace ckpt::client
