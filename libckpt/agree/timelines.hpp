// Timelines: which steps still belong to the run's history after restores to older steps.
//
//   timeline 1   1 .. 90 .. 100
//   timeline 2        \ 91 .. 120      begun from (1, 90): steps 91 to 100 of timeline 1 are fenced
//   timeline 3   \ 81 ..               begun from (1, 80): all of timeline 2 is fenced as well
//
// A timeline that began without a base fences nothing: an old run is not lost because somebody
// forgot to restore; its steps are only older than those of the new timeline.
#pragma once

#include <optional>
#include <vector>

#include "format/agreement.hpp"

namespace ckpt::agree {

using History = std::vector<format::TimelineStart>;

bool is_fenced(const History& history, format::StepId at);

// The union, sorted by timeline, each once.
History merge(const History& first, const History& second);

// The highest restore count of each step.
std::vector<format::RestoreCount> merge(const std::vector<format::RestoreCount>& first,
                                        const std::vector<format::RestoreCount>& second);
// `ours`, and those of `theirs` that it lacks: our counts may have been cleared since theirs were
// stored.
std::vector<format::RestoreCount> fill_in(std::vector<format::RestoreCount> ours,
                                          const std::vector<format::RestoreCount>& theirs);

// A failure that struck twice after a step may be chance; after three restores the step is suspect.
inline constexpr std::uint32_t restores_without_progress_max = 3;
// It was restored that often, and training never got on from it.
bool is_suspect(const std::vector<format::RestoreCount>& counts, format::StepId at);

// Whether `at` lies on the way to `timeline`: a step of it, of its base up to there, and so on.
bool leads_to(const History& history, format::StepId at, std::uint64_t timeline);

// The base of `timeline`; none: it has no base, or is not known.
std::optional<format::StepId> base_of(const History& history, std::uint64_t timeline);

std::uint64_t newest_timeline(const History& history);  // 0: none.

}  // namespace ckpt::agree
