// Published: the checkpoints that lie in a directory, and which of them a restore may take.
//
// Threads: any. Nothing is changed there, and no daemon is asked.
#pragma once

#include <ckpt/export.hpp>
#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt {

struct PublishedCheckpoint {
  std::string path;
  std::string job;
  Step step{};
  std::uint64_t timeline = 0;
  std::uint32_t world_size = 1;  // Of those who saved it.
  bool is_abandoned = false;     // By a restore to an older step: none is to bring it back.
};

struct Published {
  std::vector<PublishedCheckpoint> checkpoints;  // Newest first. Their files are there: not read.
  std::vector<std::string> damage;  // What looks like a checkpoint and is none: a sentence each.
  // Why nobody knows what was abandoned; empty: it is known. Then only a step that is named is
  // safe.
  std::string history_lost;
};

// Of the directory's run; of all where it is not marked as one's.
// Errors: not_found (no such directory), io.
CKPT_EXPORT Result<Published> list_published(std::string_view directory);

}  // namespace ckpt
