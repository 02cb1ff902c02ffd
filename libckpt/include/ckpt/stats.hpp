// Stats: counters that only grow, and the present problems. A trainer may read them at any time.
#pragma once

#include <chrono>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <optional>
#include <string>

namespace ckpt {

// The four levels of a step. Each includes the ones before it.
enum class Level : std::uint8_t {
  captured = 1,  // In a sealed Slot with its checksums: survives the trainer.
  replicated,    // The required copies are verified in other failure domains.
  committed,     // Every shard is safe, and that fact is recorded: recovery may choose it.
  durable,       // Files and manifest are synced and published on storage.
};

constexpr const char* to_string(Level level) {
  switch (level) {
    case Level::captured:
      return "captured";
    case Level::replicated:
      return "replicated";
    case Level::committed:
      return "committed";
    case Level::durable:
      return "durable";
  }
  return "none";
}

struct Stats {
  std::uint64_t saves_started = 0;
  std::uint64_t skipped_no_slot = 0;       // No free Slot: training went on instead.
  std::uint64_t skipped_unavailable = 0;   // No daemon, or no Slots, at that moment.
  std::uint64_t skipped_by_agreement = 0;  // All ranks capture a later step instead.
  std::uint64_t failed = 0;
  std::uint64_t bytes_captured = 0;
  // Those of them that a GPU did not copy, since the Slot still held them: see skip_unchanged.
  std::uint64_t bytes_unchanged = 0;
  std::chrono::nanoseconds held{0};  // Total time of the training thread inside save and guard.
  std::chrono::nanoseconds held_max{0};
  std::uint64_t daemon_restarts = 0;
  // The newest step at each level. After a restore they start from the restored step; durable from
  // the newest that storage has up to there.
  std::optional<Step> captured, replicated, committed, durable;
  std::string last_error;  // The newest failure, as logged; empty: none.
  std::string degraded;    // The present problems: lost nodes, why steps are not stored.
};

}  // namespace ckpt
