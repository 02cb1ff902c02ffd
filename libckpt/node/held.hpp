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

}  // namespace ckpt::node
