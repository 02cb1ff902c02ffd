// StorageRestore: reads one rank's shard from a published checkpoint, without a daemon.
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

#include "client/restore_teller.hpp"
#include "format/shard_record.hpp"

namespace ckpt::client {

struct LoadRequest {
  std::string path;  // A checkpoint, or a directory of them: then the newest.
  std::uint32_t rank = 0;
  std::optional<std::uint32_t> world_size;  // Ranks that saved it; none: any.
  std::chrono::steady_clock::time_point deadline;
  RestoreTeller* teller = nullptr;
};

struct FreeBytes {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};

struct LoadedShard {
  std::string directory;
  std::shared_ptr<const format::ShardRecord> record;
  std::unique_ptr<std::byte, FreeBytes> memory;
  // Verified while they were read. Laid out as in a Slot.
  std::span<const std::byte> bytes() const { return {memory.get(), record->bytes}; }
};

// Blocks. Checks the deadline and the watch between reads: a read that hangs is not interrupted.
// Errors: not_found (checkpoint or rank), corruption, unsupported (another world size),
//         exhausted (no memory for it), unavailable (the deadline passed, or the watch gave
//         it up), io.
Result<LoadedShard> load_shard(LoadRequest request);

}  // namespace ckpt::client
