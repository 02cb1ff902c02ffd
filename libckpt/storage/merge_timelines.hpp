// MergeTimelines: the histories of two directories that hold checkpoints of one run.
#pragma once

#include <cstdint>

#include "format/run_files.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// The entries of both, by timeline. Errors: invalid_argument (they differ about one: the job went
// on from both).
Result<format::Timelines> merge(const format::Timelines& one, const format::Timelines& other);

// The same history without the timelines that abandon `at`, for a copy of this step alone. The
// step's own timeline is in it, so that the next one gets a higher number.
format::Timelines without_abandoning(format::Timelines timelines, format::StepId at);

// RestoreCounts: the side whose counts of restores without progress hold where both have some.
enum class RestoreCounts : std::uint8_t { of_theirs, of_ours };

// Stores what is there and ours, and returns it. `attempt` is random. Errors: those of merge and of
// load_timelines, exhausted, io.
Task<format::Timelines> add_timelines(Site site, format::Timelines ours, RestoreCounts counts,
                                      std::uint64_t attempt);

}  // namespace ckpt::storage
