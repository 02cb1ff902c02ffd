// MemberReader: reads files into a Slot, and verifies every byte in the memory that will be used.
//
// Each Chunk is checked in place after it was read: the checksum never covers another read of the
// file. The padding between members is filled with zeros, as the writer had it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "format/manifest.hpp"
#include "os/file_system.hpp"
#include "storage/member_writer.hpp"
#include "storage/shard_files.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// Larger than for writing: somebody waits for a restore.
inline constexpr std::size_t chunks_in_flight_reading = 16;
// Each one takes two Chunks of memory besides.
inline constexpr std::size_t packed_chunks_in_flight_reading = 8;

// Fills `target` from the files of one rank. `target` has at least
// record.bytes and lives until the Task ends. Errors: corruption (names file and Chunk; also a
// missing file or one that is not regular), invalid_argument (`target` is too small), io.
Task<void> read_shard(os::FileSystem& files, ShardPlace place,
                      std::shared_ptr<const format::ShardRecord> record,
                      std::span<std::byte> target, TransferHooks hooks);

struct FileReport {
  std::string name;
  std::uint64_t bytes = 0;
  std::string problem;         // Empty: every byte matches the manifest.
  bool is_unreadable = false;  // The problem says nothing about the bytes.
};

struct CheckpointReport {
  std::shared_ptr<const format::Manifest> manifest;
  std::vector<FileReport> files;     // Those in the manifest, by rank: its part is last.
  std::vector<std::string> foreign;  // Other files in the directory. Harmless.
  bool is_good() const;
  bool is_damaged() const;  // Else it is good, or could not be read.
};

// Reads everything. Errors: those of the manifest (not_found: no complete checkpoint), io (of the
// directory; a file's own error is its `problem`), and those of hooks.before_transfer.
Task<CheckpointReport> verify_checkpoint(os::FileSystem& files, std::string step_directory,
                                         TransferHooks hooks);
Task<CheckpointReport> verify_checkpoint(os::FileSystem& files, std::string step_directory);
Task<CheckpointReport> verify_checkpoint(Site site, std::string name);  // "." is the site itself.

}  // namespace ckpt::storage
