// Held: what a job has on storage, and what it would lose if this node's memory went now.
#pragma once

#include <optional>
#include <string>

#include "format/shard_record.hpp"

namespace ckpt::node {

struct Held {
  std::string job;
  std::string directory;  // Empty: memory only.
  std::optional<format::StepId> durable;
  std::optional<format::StepId> lost;  // The newest that is in memory and not on storage.
};

// Settled: how far the captures of a rank are.
struct Settled {
  bool is_filled = true;     // None is under way.
  bool is_committed = true;  // What was captured is committed, or was given up.
};

}  // namespace ckpt::node
