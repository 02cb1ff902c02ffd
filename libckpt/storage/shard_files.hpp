// ShardFiles: the files of one rank's shard, opened, from which single Chunks are read.
//
// Files may be plain or packed. Each Chunk is checked in the memory that it was read into. The
// padding between members is filled with zeros, as the writer had it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/manifest.hpp"
#include "format/shard_record.hpp"
#include "os/file_system.hpp"
#include "storage/chunk_map.hpp"
#include "storage/member_writer.hpp"
#include "storage/packed_file.hpp"

namespace ckpt::storage {

// ShardPlace: where the files of a shard lie, and how they are stored.
struct ShardPlace {
  // Without `stored`: plain files, as the record names them.
  explicit ShardPlace(std::string where, std::vector<format::StoredFile> how = {})
      : directory(std::move(where)), stored(std::move(how)) {}

  std::string directory;                   // shard_directory.
  std::vector<format::StoredFile> stored;  // By member, as the manifest has them.
};

// The place of a shard of the checkpoint in `step_directory`.
ShardPlace shard_place(std::string_view step_directory, const format::ManifestShard& shard);

// Says whether the Chunk that was just read is good, and may use it at once. On a thread of the
// hooks' Compute; once for each place in which it is looked for.
using ChunkCheck = std::function<bool()>;

class ShardFiles {
 public:
  // Errors: corruption (a file is missing, no regular file, or has another size; a packed file's
  // table), io.
  static Task<std::shared_ptr<ShardFiles>> open(os::FileSystem& files, ShardPlace place,
                                                std::shared_ptr<const format::ShardRecord> record);
  Task<void> close();

  // `bytes` has the Chunk's size. Several may be read at once. Errors: corruption (names the files
  // and the Chunk), io.
  Task<void> read_chunk(std::size_t index, std::span<std::byte> bytes, const TransferHooks& hooks);
  // The same, where `check` compares the checksum.
  Task<void> read_chunk(std::size_t index, std::span<std::byte> bytes, const TransferHooks& hooks,
                        ChunkCheck check);

  const format::ShardRecord& record() const { return *record_; }
  bool is_packed() const;  // Some file of it.
  std::span<const format::Extent> members() const { return members_; }

 private:
  ShardFiles(ShardPlace place, std::shared_ptr<const format::ShardRecord> record);
  Task<void> open_member(os::FileSystem& files, std::size_t index);
  Task<void> read_segment(const FileSegment& segment, std::span<std::byte> target,
                          Compute* compute);
  const format::StoredFile* packed_file(std::size_t member) const;
  const std::string& name_of(std::size_t member) const;
  std::string name_of_chunk(std::span<const FileSegment> segments, std::size_t index) const;

  const ShardPlace place_;
  const std::shared_ptr<const format::ShardRecord> record_;
  const std::vector<format::Extent> members_;
  std::vector<std::unique_ptr<os::File>> opened_;      // By member.
  std::vector<std::unique_ptr<PackedReader>> packed_;  // By member; null: it is plain.
};

}  // namespace ckpt::storage
