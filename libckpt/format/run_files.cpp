#include "format/run_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "format/sealed_json.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view marker_format = "libckpt-run";
constexpr std::string_view timelines_format = "libckpt-timelines";

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

}  // namespace ckpt::format
