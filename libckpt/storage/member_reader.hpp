// MemberReader: files become a Slot again, every byte verified in the memory that will be used.
//
// What was read is checked in place against the Chunk's checksum, never the file and then read once
// more. The padding between members is filled with zeros, as the writer had it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "format/manifest.hpp"
#include "os/file_system.hpp"
#include "storage/member_writer.hpp"

namespace ckpt::storage {

// Larger than for writing: somebody waits for a restore.
inline constexpr std::size_t chunks_in_flight_reading = 16;

// Fills `target` (at least record.bytes, and living until the Task ends) from the files of one rank
// in `step_directory`. Errors: corruption (names file and Chunk; also of a file that is
// missing or no regular one), invalid_argument (`target` is too small), io.
Task<void> read_shard(os::FileSystem& files, std::string step_directory,
                      std::shared_ptr<const format::ShardRecord> record,
                      std::span<std::byte> target, TransferHooks hooks);

struct FileReport {
  std::string name;
  std::uint64_t bytes = 0;
  std::string problem;  // Empty: every byte is what the manifest says.
};

struct CheckpointReport {
  std::shared_ptr<const format::Manifest> manifest;
  std::vector<FileReport> files;     // Of the manifest, by rank.
  std::vector<std::string> foreign;  // In the directory, and not ours. Harmless.
  bool is_good() const;
};

// Reads everything. Errors: those of the manifest (not_found: it is no complete checkpoint),
// io (of the directory; of a file it is that file's problem).
Task<CheckpointReport> verify_checkpoint(os::FileSystem& files, std::string step_directory);

}  // namespace ckpt::storage
