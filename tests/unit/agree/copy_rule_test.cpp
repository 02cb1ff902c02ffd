// Goal:   the second place gets the newest step that the first has, at its own pace, and no step
//         that it has already.
// Method: lists of steps, with the answer.
#include "agree/copy_rule.hpp"

#include <catch2/catch.hpp>
#include <vector>

namespace ckpt::agree {
namespace {

DatedStep stored(std::uint64_t step, std::uint64_t created = 0, std::uint64_t timeline = 1) {
  return {{timeline, Step{step}}, created};
}

struct Case {
  std::vector<DatedStep> first, second;
  std::uint64_t published_since = 0;
  bool is_last = false;
};

std::optional<format::StepId> chosen(const Case& given, const CopyPace& pace) {
  CopyView view;
  view.first = given.first;
  view.second = given.second;
  view.published_since = given.published_since;
  view.is_last = given.is_last;
  return step_to_copy(view, pace);
}

constexpr CopyPace each{1, {}};
constexpr CopyPace every_third{3, {}};
constexpr CopyPace every_minute{0, std::chrono::seconds(60)};

}  // namespace

TEST_CASE("copy rule: an empty second place gets the newest step at once", "[unit][agree]") {
  for (const CopyPace& pace : {each, every_third, every_minute})
    CHECK(chosen({{stored(3), stored(1)}, {}}, pace) == format::StepId{1, Step{3}});
}

TEST_CASE("copy rule: nothing is copied without a newer step", "[unit][agree]") {
  for (const CopyPace& pace : {each, every_third, every_minute}) {
    CHECK_FALSE(chosen({}, pace));
    CHECK_FALSE(chosen({{}, {stored(4)}, 9, true}, pace));
    CHECK_FALSE(chosen({{stored(3, 500), stored(4, 500)}, {stored(4)}, 9, true}, pace));
    CHECK_FALSE(chosen({{stored(3, 500)}, {stored(4)}, 9, true}, pace));
  }
}

TEST_CASE("copy rule: steps are counted from the last copy on", "[unit][agree]") {
  CHECK_FALSE(chosen({{stored(1), stored(2), stored(3)}, {stored(1)}}, every_third));
  CHECK(chosen({{stored(1), stored(2), stored(3), stored(4)}, {stored(1)}}, every_third) ==
        format::StepId{1, Step{4}});
}

TEST_CASE("copy rule: steps that retention has removed count, too", "[unit][agree]") {
  CHECK_FALSE(chosen({{stored(4)}, {stored(1)}, 2}, every_third));
  CHECK(chosen({{stored(4)}, {stored(1)}, 3}, every_third) == format::StepId{1, Step{4}});
}

TEST_CASE("copy rule: the last step of a job is copied, whatever the pace", "[unit][agree]") {
  for (const CopyPace& pace : {every_third, every_minute}) {
    CHECK_FALSE(chosen({{stored(2)}, {stored(1)}, 1, false}, pace));
    CHECK(chosen({{stored(2)}, {stored(1)}, 1, true}, pace) == format::StepId{1, Step{2}});
  }
}

TEST_CASE("copy rule: time is counted from the save of the last copy to that of the newest",
          "[unit][agree]") {
  CHECK_FALSE(chosen({{stored(9, 1059)}, {stored(1, 1000)}}, every_minute));
  CHECK(chosen({{stored(9, 1060)}, {stored(1, 1000)}}, every_minute));
  // The clock was set back: without this, nothing would be copied for long.
  CHECK(chosen({{stored(9, 400)}, {stored(1, 1000)}}, every_minute));
}

TEST_CASE("copy rule: a newer timeline is newer, whatever its steps", "[unit][agree]") {
  CHECK(chosen({{stored(2, 0, 2)}, {stored(7)}}, each) == format::StepId{2, Step{2}});
  CHECK_FALSE(chosen({{stored(7)}, {stored(2, 0, 2)}}, each));
}

}  // namespace ckpt::agree
