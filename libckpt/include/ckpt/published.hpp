// Published: the checkpoints at a path, and which of them a restore may take.
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
  std::uint32_t world_size = 1;            // The number of ranks that saved it.
  bool is_abandoned = false;               // By a restore to an older step: do not restore it.
  std::uint64_t created_unix_seconds = 0;  // By the clock of its writer.
  std::map<std::string, double, std::less<>> metrics;  // From its save, by rank 0.
};

struct Published {
  // Newest first; of several runs, by the time of publishing. Their files exist, unread.
  std::vector<PublishedCheckpoint> checkpoints;
  std::vector<std::string> damage;  // A sentence for each damaged checkpoint or run.
  // Why it is not known which are abandoned; empty: it is known. If not, restore only a named step.
  std::string history_lost;
};

// Lists the checkpoints of the run whose directory the path is (of two places: both copies), or of
// all runs below it; of a directory that no run has marked, those that lie in it. The path of one
// checkpoint lists that one. Errors: not_found (no such directory), corruption (of the named
// checkpoint), invalid_argument (places of two runs), exhausted (too many directories), io.
CKPT_EXPORT Result<Published> list_published(std::string_view path);

// A file with tensors.
struct MemberFile {
  std::string archive;  // The torch archive that it is; empty: it has the tensors outside of those.
  std::string path;
};

// Names the files of each rank in the checkpoint at this path. Errors: not_found (there is none),
// corruption (of its manifest), io.
CKPT_EXPORT Result<std::vector<std::vector<MemberFile>>> list_members(std::string_view checkpoint);

// The size of a Slot that takes what the rank has in the newest checkpoint, by its name; 0: there
// is none, or storage does not answer within seconds. For making room before a restore.
CKPT_EXPORT std::uint64_t newest_slot_bytes(std::string_view directory, std::uint32_t rank);

}  // namespace ckpt
