#include "format/run_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "format/sealed_json.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view marker_format = "libckpt-run";
constexpr std::string_view timelines_format = "libckpt-timelines";
constexpr std::string_view retention_format = "libckpt-retention";

Result<StepId> read_step_id(JsonReader& reader) {
  StepId at;
  CKPT_TRY(at.timeline, reader.integer_member("timeline"));
  CKPT_TRY(const auto step, reader.integer_member("step"));
  at.step = Step{step};
  return at;
}

Result<TimelineStart> read_timeline_start(JsonReader& reader) {
  TimelineStart start;
  CKPT_CHECK(reader.begin_object());
  CKPT_TRY(start.timeline, reader.integer_member("id"));
  CKPT_TRY(const auto has_base, reader.integer_member("has_base", 1));
  CKPT_TRY(const StepId base, read_step_id(reader));
  if (has_base == 1) start.base = base;
  CKPT_CHECK(reader.end_object());
  return start;
}

Result<RestoreCount> read_restore_count(JsonReader& reader) {
  RestoreCount count;
  CKPT_CHECK(reader.begin_object());
  CKPT_TRY(count.at, read_step_id(reader));
  CKPT_TRY(const auto times, reader.integer_member("times", UINT32_MAX));
  count.times = static_cast<std::uint32_t>(times);
  CKPT_CHECK(reader.end_object());
  return count;
}

Result<KeepInterval> read_keep_interval(JsonReader& reader) {
  KeepInterval interval;
  CKPT_CHECK(reader.begin_object());
  CKPT_TRY(interval.every, reader.integer_member("every"));
  CKPT_TRY(const auto has_until, reader.integer_member("has_until", 1));
  CKPT_TRY(const auto until, reader.integer_member("until"));
  if (has_until == 1) interval.until = until;
  CKPT_CHECK(reader.end_object());
  return interval;
}

}  // namespace

bool is_abandoned(const std::vector<TimelineStart>& history, StepId at) {
  return std::any_of(history.begin(), history.end(), [&](const TimelineStart& start) {
    return start.base && at.timeline < start.timeline && at > *start.base;
  });
}

std::string render(const RunMarker& marker) {
  std::string out = begin_sealed_json(marker_format);
  out += "\"job\":";
  append_json(out, marker.job);
  out += ",\"run\":";
  append_json(out, marker.run);
  out += ",\n";
  return seal_json(std::move(out));
}

std::string render(const Timelines& timelines) {
  std::string out = begin_sealed_json(timelines_format);
  out += "\"run\":";
  append_json(out, timelines.run);
  out += ",\n\"history\":[";
  std::string_view divider = "\n";
  for (const auto& start : timelines.history) {
    const StepId base = start.base.value_or(StepId{});
    fmt::format_to(std::back_inserter(out),
                   "{}{{\"id\":{},\"has_base\":{},\"timeline\":{},\"step\":{}}}", divider,
                   start.timeline, start.base ? 1 : 0, base.timeline, number(base.step));
    divider = ",\n";
  }
  out += "],\n\"restore_counts\":[";
  divider = "\n";
  for (const auto& count : timelines.restore_counts) {
    fmt::format_to(std::back_inserter(out), "{}{{\"timeline\":{},\"step\":{},\"times\":{}}}",
                   divider, count.at.timeline, number(count.at.step), count.times);
    divider = ",\n";
  }
  out += "],\n";
  return seal_json(std::move(out));
}

std::string render(const RetentionWords& words) {
  std::string out = begin_sealed_json(retention_format);
  out += "\"run\":";
  append_json(out, words.run);
  fmt::format_to(std::back_inserter(out), ",\n\"max_ckpt_num\":{},\n\"keep_every\":[",
                 words.max_ckpt_num);
  std::string_view divider = "";
  for (const auto& interval : words.keep_every) {
    fmt::format_to(std::back_inserter(out), "{}{{\"every\":{},\"has_until\":{},\"until\":{}}}",
                   divider, interval.every, interval.until ? 1 : 0, interval.until.value_or(0));
    divider = ",";
  }
  fmt::format_to(std::back_inserter(out), "],\n\"keep_best\":{},\"best_metric\":", words.keep_best);
  append_json(out, words.best_metric);
  fmt::format_to(std::back_inserter(out), ",\"best_is_greatest\":{},\n",
                 words.best_is_greatest ? 1 : 0);
  return seal_json(std::move(out));
}

Result<RunMarker> parse_run_marker(std::string_view text) {
  CKPT_TRY(auto reader, open_sealed_json(text, marker_format, "run.json"));
  RunMarker marker;
  CKPT_TRY(marker.job, reader.string_member("job"));
  CKPT_TRY(marker.run, digest_member(reader, "run"));
  CKPT_CHECK(finish_sealed_json(reader));
  return marker;
}

Result<Timelines> parse_timelines(std::string_view text) {
  CKPT_TRY(auto reader, open_sealed_json(text, timelines_format, "timelines.json"));
  Timelines timelines;
  CKPT_TRY(timelines.run, digest_member(reader, "run"));
  CKPT_CHECK(reader.array_member("history", [&]() -> Status {
    CKPT_TRY(const auto start, read_timeline_start(reader));
    timelines.history.push_back(start);
    return {};
  }));
  CKPT_CHECK(reader.array_member("restore_counts", [&]() -> Status {
    CKPT_TRY(const auto count, read_restore_count(reader));
    timelines.restore_counts.push_back(count);
    return {};
  }));
  CKPT_CHECK(finish_sealed_json(reader));
  return timelines;
}

Result<RetentionWords> parse_retention(std::string_view text) {
  CKPT_TRY(auto reader, open_sealed_json(text, retention_format, "retention.json"));
  RetentionWords words;
  CKPT_TRY(words.run, digest_member(reader, "run"));
  CKPT_TRY(const auto count, reader.integer_member("max_ckpt_num", UINT32_MAX));
  words.max_ckpt_num = static_cast<std::uint32_t>(count);
  CKPT_CHECK(reader.array_member("keep_every", [&]() -> Status {
    CKPT_TRY(const auto interval, read_keep_interval(reader));
    words.keep_every.push_back(interval);
    return {};
  }));
  CKPT_TRY(const auto best, reader.integer_member("keep_best", UINT32_MAX));
  words.keep_best = static_cast<std::uint32_t>(best);
  CKPT_TRY(words.best_metric, reader.string_member("best_metric"));
  CKPT_TRY(const auto is_greatest, reader.integer_member("best_is_greatest", 1));
  words.best_is_greatest = is_greatest == 1;
  CKPT_CHECK(finish_sealed_json(reader));
  return words;
}

}  // namespace ckpt::format
