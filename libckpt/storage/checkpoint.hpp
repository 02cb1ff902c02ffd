// Checkpoint: the description of a published step, from its manifest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/ids.hpp"
#include "format/metrics.hpp"

namespace ckpt::storage {

struct Checkpoint {
  format::StepId at;
  std::string name;  // Relative to the directory.
  std::string job;
  format::RunId run;
  std::uint32_t world_size = 1;
  std::uint64_t bytes = 0;                 // All its files but the manifest.
  std::vector<Digest> digests;             // The records', by rank.
  std::uint64_t created_unix_seconds = 0;  // By its writer's clock; for people.
  format::Metrics metrics;                 // The trainer gave them with the save.
  bool is_abandoned = false;               // By a restore to an older step; see run_catalog.hpp.
};

}  // namespace ckpt::storage
