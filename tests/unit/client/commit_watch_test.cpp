// Goal:   a rank that saves alone hears it while it trains, and others do not.
// Method: tell it of saves without a free Slot at times of the test's own.
#include "client/commit_watch.hpp"

#include <catch2/catch.hpp>

namespace ckpt::client {

namespace {

using Catch::Contains;
using std::chrono::seconds;

LinkCounters committed(std::optional<Step> step) {
  LinkCounters counters;
  counters.committed = step;
  return counters;
}

CommitWatch::TimePoint at(int second) {
  return CommitWatch::TimePoint(seconds(second));
}

}  // namespace

TEST_CASE("commit watch: one warning when no Slot was free for long and no step is committed",
          "[unit][client]") {
  CommitWatch watch(2);
  CHECK_FALSE(watch.skipped(committed({}), at(100)));
  CHECK_FALSE(watch.skipped(committed({}), at(129)));
  CHECK(watch.text().empty());
  CHECK(watch.skipped(committed({}), at(130)));
  CHECK_THAT(watch.text(), Contains("3 saves in a row") && Contains("no step is saved by all") &&
                               Contains("do all 2 ranks save"));
  CHECK_FALSE(watch.skipped(committed({}), at(200)));
  CHECK_THAT(watch.text(), Contains("4 saves in a row"));
}

TEST_CASE("commit watch: a free Slot, and a step that is committed, end the row",
          "[unit][client]") {
  CommitWatch watch(2);
  (void)watch.skipped(committed(Step{3}), at(100));
  CHECK(watch.skipped(committed(Step{3}), at(130)));
  CHECK_THAT(watch.text(), Contains("no step after 3 is saved"));
  SECTION("a free Slot") {
    watch.started();
    CHECK(watch.text().empty());
    CHECK_FALSE(watch.skipped(committed(Step{3}), at(140)));
  }
  SECTION("a commit") {
    CHECK_FALSE(watch.skipped(committed(Step{4}), at(140)));
  }
  CHECK(watch.text().empty());
}

TEST_CASE("commit watch: the only rank of a job waits for none", "[unit][client]") {
  CommitWatch watch(1);
  (void)watch.skipped(committed({}), at(100));
  CHECK_FALSE(watch.skipped(committed({}), at(500)));
  CHECK(watch.text().empty());
}

}  // namespace ckpt::client
