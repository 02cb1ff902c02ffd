// RunFiles: the small files that hold a directory's run, the history of its timelines, and what is
// to stay there.
//
// All are sealed: a changed byte is an error. libckpt/docs/format.md shows them.
#pragma once

#include <ckpt/options.hpp>
#include <ckpt/result.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/agreement.hpp"

namespace ckpt::format {

inline constexpr std::size_t run_file_bytes_max = 16u << 20;  // The most that a reader accepts.

// run.json: written once, when a job first uses the directory. Another job is then refused.
struct RunMarker {
  std::string job;
  RunId run;
  bool operator==(const RunMarker&) const = default;
};

// timelines.json: replaced at each restore.
struct Timelines {
  RunId run;
  std::vector<TimelineStart> history;
  std::vector<RestoreCount> restore_counts;
  bool operator==(const Timelines&) const = default;
};

// retention.json: which checkpoints the job keeps, in the words of its options; for people and
// tools that delete some. A daemon goes by its trainers' options, and never reads it.
struct RetentionWords {
  RunId run;
  std::uint32_t max_ckpt_num = 0;
  std::vector<KeepInterval> keep_every;
  std::uint32_t keep_best = 0;
  std::string best_metric;
  bool best_is_greatest = false;
  bool operator==(const RetentionWords&) const = default;
};

// Returns true if a later timeline is based on a step before `at`: see agree/timelines.hpp.
bool is_abandoned(const std::vector<TimelineStart>& history, StepId at);

std::string render(const RunMarker& marker);
std::string render(const Timelines& timelines);
std::string render(const RetentionWords& words);
// Errors: corruption, version_mismatch.
Result<RunMarker> parse_run_marker(std::string_view text);
Result<Timelines> parse_timelines(std::string_view text);
Result<RetentionWords> parse_retention(std::string_view text);

}  // namespace ckpt::format
