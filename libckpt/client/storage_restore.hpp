// StorageRestore: reads a published checkpoint without a daemon: the shard of one rank as it was
// saved, or what a rank wants, whichever ranks saved it.
#pragma once

#include <chrono>
#include <ckpt/result.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/restore_teller.hpp"
#include "format/shard_record.hpp"

namespace ckpt::client {

struct LoadRequest {
  std::string path;  // A checkpoint, a run, or a parent of runs (storage/search.hpp).
  // No other rank reads it: then a damaged one may be passed over for an older one.
  bool is_alone = false;
  std::uint32_t rank = 0;
  struct Wanted {
    std::uint32_t world_size = 1;  // The reader's.
    std::vector<format::TensorSpec> tensors;
  };
  std::optional<Wanted> wanted;  // None: the shard of `rank`, as it was saved.
  std::chrono::steady_clock::time_point deadline;
  RestoreTeller* teller = nullptr;
};

struct FreeBytes {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};

struct LoadedShard {
  std::string directory;
  std::string reason;  // How it was put together; for people. Empty: as it was saved.
  std::shared_ptr<const format::ShardRecord> record;
  std::unique_ptr<std::byte, FreeBytes> memory;
  std::uint32_t saved_by = 1;  // The number of ranks that saved it.
  // Verified while they were read. Laid out as in a Slot.
  std::span<const std::byte> bytes() const { return {memory.get(), record->bytes}; }
};

// Blocks. Checks the deadline and the watch between reads: a read that hangs is not interrupted.
// Errors: not_found (checkpoint or rank), corruption, invalid_argument (not the wanted tensors or
//         shapes), unsupported (a whole tensor of several ranks, wanted by another number of
//         ranks), exhausted (no memory for it), unavailable (the deadline passed, or the watch gave
//         it up), io.
Result<LoadedShard> load_shard(LoadRequest request);

}  // namespace ckpt::client
