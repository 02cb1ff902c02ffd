// MemberWriter: one rank's Slot becomes files in a work directory, each Chunk verified as it goes.
//
// The Chunk's checksum is compared right before its bytes are written: what does not match the
// record is never in a file that a manifest names. The files and the part are synced when it ends;
// their names are made durable by the publisher, who syncs the work directory.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/compute.hpp"
#include "format/agreement.hpp"
#include "format/shard_record.hpp"
#include "os/file_span.hpp"
#include "os/file_system.hpp"

namespace ckpt::storage {

// Chunks of one shard in flight: with 4 MiB each, what an NVMe drive wants and no more.
inline constexpr std::size_t chunks_in_flight = 8;

// One sealed Slot. The memory behind `slot` must live until the Task ends, however it ends.
struct ShardSource {
  std::shared_ptr<const format::ShardRecord> record;
  std::vector<os::FileSpan> slot;
  std::uint32_t turn = 0;  // Of the writers of this part: its files are named by it.
};

// Hooks: what the owner of the threads and of the bandwidth puts in between. Empty: nothing.
struct TransferHooks {
  Compute* compute = nullptr;  // Where checksums are computed.
  // Before this many bytes are moved; may wait, or fail to end it (cancelled).
  std::function<Task<void>(std::uint64_t bytes)> before_transfer;
  // After this many were moved, and verified; 0 after each other thing that may take long.
  std::function<void(std::uint64_t bytes)> verified;
};

// `work_directory` exists; its path is marked (Site::at). Returns the record's digest.
// Errors: corruption (names rank, step and Chunk: nothing of this shard is to be published),
//         invalid_argument (the Slot is smaller than its record, or a file exists), exhausted, io.
Task<format::ShardFlushed> write_shard(os::FileSystem& files, ShardSource source,
                                       std::string work_directory, TransferHooks hooks);

}  // namespace ckpt::storage
