// Published: the checkpoints in a directory, and which of them a restore may take.
//
// Threads: any. Changes nothing in the directory, and needs no daemon.
#pragma once

#include <ckpt/export.hpp>
#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt {

struct PublishedCheckpoint {
  std::string path;
  std::string job;
  Step step{};
  std::uint64_t timeline = 0;
  std::uint32_t world_size = 1;  // The number of ranks that saved it.
  bool is_abandoned = false;     // By a restore to an older step: do not restore it.
  std::map<std::string, double, std::less<>> metrics;  // Of its save, by rank 0.
};

struct Published {
  std::vector<PublishedCheckpoint> checkpoints;  // Newest first. Their files exist, unread.
  std::vector<std::string> damage;               // A sentence for each damaged checkpoint.
  // Why it is not known which are abandoned; empty: it is known. If not, restore only a named step.
  std::string history_lost;
};

// Lists the checkpoints of the directory's run, or of all runs if no run has marked it.
// Errors: not_found (no such directory), io.
CKPT_EXPORT Result<Published> list_published(std::string_view directory);

}  // namespace ckpt
