// RunFiles: the two small files that tell a directory's run and the history of its timelines.
//
// Both are sealed: a byte that changed is an error. libckpt/docs/format.md shows them.
#pragma once

#include <ckpt/result.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "format/agreement.hpp"

namespace ckpt::format {

inline constexpr std::size_t run_file_bytes_max = 16u << 20;  // To read at most.

// run.json: written once, when a job first uses the directory. Another job is refused there.
struct RunMarker {
  std::string job;
  RunId run;
  bool operator==(const RunMarker&) const = default;
};

// timelines.json: replaced with each restore.
struct Timelines {
  RunId run;
  std::vector<TimelineStart> history;
  std::vector<RestoreCount> restore_counts;
  bool operator==(const Timelines&) const = default;
};

// A later timeline was based on an older step than it: agree/timelines.hpp shows it.
bool is_abandoned(const std::vector<TimelineStart>& history, StepId at);

std::string render(const RunMarker& marker);
std::string render(const Timelines& timelines);
// Errors: corruption, version_mismatch.
Result<RunMarker> parse_run_marker(std::string_view text);
Result<Timelines> parse_timelines(std::string_view text);

}  // namespace ckpt::format
