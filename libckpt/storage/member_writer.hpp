// MemberWriter: writes one rank's Slot, or the Chunks that a stream brings, to files in a work
// directory, and verifies each Chunk.
//
// Each Chunk is verified right before its bytes are written or shared, so that a file named by a
// manifest never holds other bytes. The files and the part are synced when it ends. The publisher
// makes their names durable by syncing the work directory.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/agreement.hpp"
#include "format/copy_note.hpp"
#include "format/shard_record.hpp"
#include "os/file_span.hpp"
#include "os/file_system.hpp"
#include "storage/chunk_sharing.hpp"
#include "storage/frame_codec.hpp"
#include "storage/transfer_hooks.hpp"

namespace ckpt::storage {

// Chunks of one shard in flight: 4 MiB each, enough to keep an NVMe drive busy.
inline constexpr std::size_t chunks_in_flight = 8;
// A request takes longer than a write, and two Chunks make one: eight of them at a time.
inline constexpr std::size_t chunks_in_flight_to_bucket = 16;

// ShardToWrite: one sealed Slot. The memory behind `slot` must live until the Task ends in any way.
struct ShardToWrite {
  std::shared_ptr<const format::ShardRecord> record;
  std::vector<os::FileSpan> slot;
  std::uint32_t turn = 0;                  // Names the files: grows with each writer of this part.
  std::optional<Compression> compression;  // None: the files are the plain ones.
  // All Chunks, in the order in which they are written, one after the other; empty: several at a
  // time. Compressed files get their frames in this order.
  std::vector<std::size_t> order;
  // The findings of the rank's trainer on copies that ranks divide; null: none.
  std::shared_ptr<const std::vector<format::CopyNote>> copies = nullptr;
  // Lets plain files share with those stored before; null: every byte is written.
  std::shared_ptr<ChunkSharing> sharing = nullptr;
};

// ShardStream: one shard that is nowhere in memory as a whole. Its Chunks come in their order, a
// few at a time.
struct ShardStream {
  // Without checksums of Chunks: they are taken from the bytes that come.
  std::shared_ptr<const format::ShardRecord> record;
  std::size_t chunks_at_once = 1;
  // Fills `target` with these bytes of the Slot, padding included: whole Chunks.
  std::function<Task<void>(format::Extent range, std::span<std::byte> target)> read;
};

// `work_directory` exists; its path is marked (attempt_path). Returns the record's digest. Errors:
// corruption (names rank, step and Chunk: no part of this shard may be published), invalid_argument
// (the Slot is smaller than its record, or a file exists), exhausted, io.
Task<format::ShardFlushed> write_shard(os::FileSystem& files, ShardToWrite source,
                                       std::string work_directory, TransferHooks hooks);
// The same. Memory: the Chunks that come together. Errors: those of `read`, too.
Task<format::ShardFlushed> write_shard(os::FileSystem& files, ShardStream source,
                                       std::string work_directory, TransferHooks hooks);

}  // namespace ckpt::storage
