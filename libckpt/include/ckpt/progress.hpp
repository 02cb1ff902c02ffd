// RestoreProgress: the progress of a restore, for display.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ckpt {

struct RestoreProgress {
  enum class Phase : std::uint8_t {
    waiting,  // For other ranks, for the daemon, or until a step is chosen.
    filling,  // From storage, or a peer's memory, into memory of this node. Without any bytes yet:
              // they may also be here, while an older trainer still has the Slots.
    copying,  // From that memory into the tensors.
    ended,    // Reported once, after success and failure alike.
  };
  Phase phase = Phase::waiting;
  std::uint64_t bytes = 0;        // Done in this phase; all are verified.
  std::uint64_t bytes_total = 0;  // 0 while waiting.
  std::string source_name;        // "storage", "node B", "own memory"; empty while waiting.
  std::string waiting;            // The reason, when it is known; for people.
};

// Called about ten times a second, on the thread that restores. It must return quickly, must not
// throw, and must not call the Checkpointer. A phase shorter than a tenth of a second may go
// unreported, but not the end. Returns whether to go on. False ends a restore with an error while
// it waits, or while memory is filled. A restore that copies is finished all the same, since half
// of one is useless.
using RestoreWatch = std::function<bool(const RestoreProgress&)>;

}  // namespace ckpt
