// RestoreProgress: how far a restore is, for whoever waits for it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ckpt {

struct RestoreProgress {
  enum class Phase : std::uint8_t {
    waiting,  // For other ranks, for the daemon, or until a step is chosen.
    filling,  // Storage, or a peer's memory, to memory of this node.
    copying,  // That memory to the tensors.
    ended,    // Told once, whatever came of it.
  };
  Phase phase = Phase::waiting;
  std::uint64_t bytes = 0;        // Done of this phase, all of them verified.
  std::uint64_t bytes_total = 0;  // 0 while waiting.
  std::string source_name;        // "storage", "node B", "own memory"; empty while waiting.
  std::string waiting;            // For whom or what, when that is known; for people.
};

// Told on the thread that restores, some ten times a second. It must return quickly, not throw, and
// not call the Checkpointer. What takes less than a tenth of a second, but the end, may not be told
// at all. It answers whether to go on: a restore that still waits, or that the daemon still fills,
// ends with an error at a false one; one that copies is finished, since half of one helps nobody.
using RestoreWatch = std::function<bool(const RestoreProgress&)>;

}  // namespace ckpt
