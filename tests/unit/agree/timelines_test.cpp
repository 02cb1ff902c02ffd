// Goal:   every node knows alike which steps a restore abandoned and which it went on from; and a
//         step that only does harm is found out.
// Method: small histories and counts, told apart by one timeline, step or number.
#include "agree/timelines.hpp"

#include <catch2/catch.hpp>

using namespace ckpt;

namespace {

format::StepId at(std::uint64_t timeline, std::uint64_t step) {
  return {timeline, Step{step}};
}

}  // namespace

TEST_CASE("timelines: the newest timeline's own steps are never fenced", "[unit][agree]") {
  const agree::History history{{1, {}}, {2, at(1, 900)}};
  CHECK(agree::is_fenced(history, at(1, 901)));
  CHECK_FALSE(agree::is_fenced(history, at(1, 900)));
  CHECK_FALSE(agree::is_fenced(history, at(2, 901)));
  CHECK_FALSE(agree::is_fenced(history, at(3, 901)));
}

TEST_CASE("timelines: histories are put together, each timeline once", "[unit][agree]") {
  const agree::History first{{1, {}}, {3, at(1, 5)}};
  const agree::History second{{2, at(1, 7)}, {3, at(1, 5)}};
  const agree::History both = agree::merge(first, second);
  CHECK(both == agree::History{{1, {}}, {2, at(1, 7)}, {3, at(1, 5)}});
  CHECK(agree::newest_timeline(both) == 3);
  CHECK(agree::newest_timeline({}) == 0);
  CHECK(agree::base_of(both, 3) == at(1, 5));
  CHECK_FALSE(agree::base_of(both, 1));
  CHECK_FALSE(agree::base_of(both, 4));
}

TEST_CASE("timelines: a step leads to its own timeline, and to those that go on after it",
          "[unit][agree]") {
  const agree::History history{{1, {}}, {2, at(1, 7)}, {3, {}}, {4, at(2, 9)}};
  CHECK(agree::leads_to(history, at(4, 20), 4));
  CHECK(agree::leads_to(history, at(2, 9), 4));
  CHECK(agree::leads_to(history, at(1, 7), 4));
  CHECK_FALSE(agree::leads_to(history, at(2, 10), 4));
  CHECK_FALSE(agree::leads_to(history, at(1, 8), 4));
  CHECK_FALSE(agree::leads_to(history, at(3, 1), 4));  // It was begun anew.
  CHECK_FALSE(agree::leads_to(history, at(1, 7), 3));
  CHECK_FALSE(agree::leads_to({{2, at(3, 1)}, {3, at(2, 1)}}, at(1, 1), 3));  // No ring.
}

TEST_CASE("timelines: the higher of two counts of a step counts, and our own goes first",
          "[unit][agree]") {
  const std::vector<format::RestoreCount> ours{{at(1, 5), 2}, {at(1, 6), 1}};
  const std::vector<format::RestoreCount> theirs{{at(1, 5), 3}, {at(2, 5), 1}};
  CHECK(agree::merge(ours, theirs) ==
        std::vector<format::RestoreCount>{{at(1, 5), 3}, {at(1, 6), 1}, {at(2, 5), 1}});
  CHECK(agree::merge(theirs, ours) == agree::merge(ours, theirs));
  CHECK(agree::fill_in(ours, theirs) ==
        std::vector<format::RestoreCount>{{at(1, 5), 2}, {at(1, 6), 1}, {at(2, 5), 1}});
}

TEST_CASE("timelines: a step is suspect from so many restores on, in its own timeline",
          "[unit][agree]") {
  const std::vector<format::RestoreCount> counts{{at(1, 5), 3}, {at(1, 6), 2}};
  CHECK(agree::is_suspect(counts, at(1, 5)));
  CHECK_FALSE(agree::is_suspect(counts, at(1, 6)));
  CHECK_FALSE(agree::is_suspect(counts, at(2, 5)));
  CHECK_FALSE(agree::is_suspect({}, at(1, 5)));
}
