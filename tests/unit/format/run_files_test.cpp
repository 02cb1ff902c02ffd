// Goal:   the files that say whose directory it is, and what was restored when, cannot rot unseen.
// Method: to and fro, every bit turned, another file in their place.
#include "format/run_files.hpp"

#include <catch2/catch.hpp>

#include "sample.hpp"

namespace ckpt::format {

namespace {

template <class Parse>
void require_text_damage_is_found(const std::string& good, Parse parse) {
  REQUIRE(parse(good));
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    REQUIRE_FALSE(parse(bad));
  }
  for (std::size_t size = 0; size < good.size(); ++size) REQUIRE_FALSE(parse(good.substr(0, size)));
}

Timelines sample_timelines() {
  Timelines timelines;
  timelines.run = {9, 10};
  timelines.history = {{1, {}}, {2, StepId{1, Step{900}}}};
  timelines.restore_counts = {{{1, Step{900}}, 3}};
  return timelines;
}

RetentionWords sample_words() {
  RetentionWords words;
  words.run = {9, 10};
  words.max_ckpt_num = 3;
  words.keep_every = {{1000, 10000}, {5000, {}}};
  words.keep_best = 2;
  words.best_metric = "loss \"x\"";
  words.best_is_greatest = true;
  return words;
}

}  // namespace

TEST_CASE("run files: the marker, the timelines and what is kept come back", "[unit][format]") {
  const RunMarker marker{"job \"x\"\n", {1, 2}};
  CHECK(parse_run_marker(render(marker)).value() == marker);
  CHECK(parse_timelines(render(sample_timelines())).value() == sample_timelines());
  CHECK(parse_timelines(render(Timelines{})).value() == Timelines{});
  CHECK(parse_retention(render(sample_words())).value() == sample_words());
  CHECK(parse_retention(render(RetentionWords{})).value() == RetentionWords{});
}

TEST_CASE("run files: every turned bit and every cut is found", "[unit][format]") {
  require_text_damage_is_found(render(RunMarker{"gpt2", {1, 2}}),
                               [](const std::string& text) { return parse_run_marker(text); });
  require_text_damage_is_found(render(sample_timelines()),
                               [](const std::string& text) { return parse_timelines(text); });
  require_text_damage_is_found(render(sample_words()),
                               [](const std::string& text) { return parse_retention(text); });
}

TEST_CASE("run files: a restore abandons what came after it, in older timelines only",
          "[unit][format]") {
  const auto at = [](std::uint64_t timeline, std::uint64_t step) {
    return StepId{timeline, Step{step}};
  };
  // 2 goes on from step 900 of 1, 3 from step 950 of 2, 4 from the beginning.
  const std::vector<TimelineStart> history{{1, {}}, {2, at(1, 900)}, {3, at(2, 950)}, {4, {}}};
  CHECK_FALSE(is_abandoned(history, at(1, 900)));
  CHECK(is_abandoned(history, at(1, 901)));
  CHECK(is_abandoned(history, at(1, 5000)));
  CHECK_FALSE(is_abandoned(history, at(2, 901)));
  CHECK_FALSE(is_abandoned(history, at(2, 950)));
  CHECK(is_abandoned(history, at(2, 951)));
  CHECK_FALSE(is_abandoned(history, at(3, 901)));
  CHECK_FALSE(is_abandoned(history, at(3, 5000)));
  CHECK_FALSE(is_abandoned(history, at(4, 1)));
  CHECK_FALSE(is_abandoned({}, at(1, 1)));
}

TEST_CASE("run files: one is not taken for the other", "[unit][format]") {
  CHECK_FALSE(parse_timelines(render(RunMarker{"gpt2", {1, 2}})));
  CHECK_FALSE(parse_run_marker(render(sample_timelines())));
  CHECK_FALSE(parse_retention(render(sample_timelines())));
  CHECK_FALSE(parse_run_marker(""));
  CHECK_FALSE(parse_run_marker("{}"));
}

}  // namespace ckpt::format
