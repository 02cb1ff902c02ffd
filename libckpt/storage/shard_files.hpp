// ShardFiles: the files of one rank's shard, opened, from which single Chunks are read.
//
// Each Chunk is checked in the memory that it was read into. The padding between members is filled
// with zeros, as the writer had it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "format/shard_record.hpp"
#include "os/file_system.hpp"
#include "storage/chunk_map.hpp"
#include "storage/member_writer.hpp"

namespace ckpt::storage {

class ShardFiles {
 public:
  // `directory` is that of the shard (shard_directory). Errors: corruption (a file is missing, no
  // regular file, or has another size), io.
  static Task<std::shared_ptr<ShardFiles>> open(os::FileSystem& files, std::string directory,
                                                std::shared_ptr<const format::ShardRecord> record);
  Task<void> close();

  // `bytes` has the Chunk's size. Several may be read at once. Errors: corruption (names the files
  // and the Chunk), io.
  Task<void> read_chunk(std::size_t index, std::span<std::byte> bytes, const TransferHooks& hooks);

  const format::ShardRecord& record() const { return *record_; }
  std::span<const format::Extent> members() const { return members_; }

 private:
  ShardFiles(std::string directory, std::shared_ptr<const format::ShardRecord> record);
  std::string names_of(std::span<const FileSegment> segments) const;

  const std::string directory_;
  const std::shared_ptr<const format::ShardRecord> record_;
  const std::vector<format::Extent> members_;
  std::vector<std::unique_ptr<os::File>> opened_;  // By member.
};

}  // namespace ckpt::storage
