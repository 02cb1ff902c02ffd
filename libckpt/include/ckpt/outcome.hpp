// Outcome: the results of save and restore.
#pragma once

#include <chrono>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <optional>
#include <string>

namespace ckpt {

enum class SaveOutcome {
  not_due,  // The policy did not ask for this step.
  started,  // The capture runs; the step is CAPTURED soon.
  // All Slots are busy, or a GPU still copies the capture before: counted, and all ranks give the
  // step up.
  skipped_no_slot,
  skipped_unavailable,   // The daemon is away, or still makes the Slots of a new layout.
  disabled,              // LIBCKPT_DISABLE=1.
  skipped_by_agreement,  // All ranks capture a later step, which the coordinator announced.
};

enum class RestoreSource : std::uint8_t { own_memory, peer_memory, storage };
constexpr const char* to_string(RestoreSource source) {
  switch (source) {
    case RestoreSource::own_memory:
      return "own_memory";
    case RestoreSource::peer_memory:
      return "peer_memory";
    case RestoreSource::storage:
      return "storage";
  }
  return "unknown";
}
// SourceChoice: where a restore may take the step from; by default wherever it is nearest.
enum class SourceChoice : std::uint8_t { any, memory, storage };

struct Restored {
  Step step{};
  std::uint64_t timeline = 0;
  RestoreSource source = RestoreSource::own_memory;
  std::string source_name;     // "own memory", "node B", "step-000000123 in /ckpt"
  std::uint32_t saved_by = 1;  // The number of ranks that saved the step.
  // The rank whose blobs `rank` has now: another one's, where `rank` did not exist then.
  std::uint32_t blobs_of(std::uint32_t rank) const { return rank % saved_by; }
  std::uint64_t bytes = 0;
  std::uint64_t bytes_from_storage = 0;  // Part of these; the rest came from memory.
  std::chrono::nanoseconds took{0};
  std::string reason;  // Why this step, and not a newer one; for people.
  // The newest step that training is known to have reached before this restore, at least `step`:
  // those between are lost. None: not known, as for a restore from a path, or if no daemon that saw
  // the job train is left.
  std::optional<Step> newest_seen;
};

}  // namespace ckpt
