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
    ended,    // Reported once, whatever came of it.
  };
  Phase phase = Phase::waiting;
  std::uint64_t bytes = 0;        // Done of this phase, all of them verified.
  std::uint64_t bytes_total = 0;  // 0 while waiting.
  std::string source_name;        // "storage", "node B", "own memory"; empty while waiting.
  std::string waiting;            // The reason, when it is known; for people.
};

// Called on the thread that restores, some ten times a second. It must return quickly, not throw,
// and not call the Checkpointer. A phase shorter than a tenth of a second, other than the end, may
// not be reported at all. It returns whether to go on: at false, a restore that still waits, or
// that the daemon still fills, ends with an error; one that copies is finished, since half of one
// helps nobody.
using RestoreWatch = std::function<bool(const RestoreProgress&)>;

}  // namespace ckpt
