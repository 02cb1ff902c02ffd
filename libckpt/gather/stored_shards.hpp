// StoredShards: the shards of a published checkpoint, read from its files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "format/manifest.hpp"
#include "gather/shard_source.hpp"
#include "os/file_system.hpp"
#include "storage/shard_files.hpp"

namespace ckpt::gather {

// Reads these Chunks of a shard, some at a time. Arguments live until it ends.
Task<void> read_stored_chunks(os::FileSystem& files, storage::ShardPlace stored,
                              std::shared_ptr<const format::ShardRecord> record,
                              std::vector<std::size_t> chunks, ChunkSink sink,
                              const storage::TransferHooks& hooks);

class StoredShards final : public ShardSource {
 public:
  StoredShards(os::FileSystem& files, std::string step_directory,
               std::shared_ptr<const format::Manifest> manifest)
      : files_(files), directory_(std::move(step_directory)), manifest_(std::move(manifest)) {}

  std::uint32_t shard_count() const override { return manifest_->world_size; }
  // Reads only the front of the part and the blocks that may have these names.
  Task<Excerpt> look(std::uint32_t rank, std::vector<std::string> names) override;
  Task<std::shared_ptr<const format::ShardRecord>> whole_record(std::uint32_t rank) override;
  Task<void> read(std::shared_ptr<const format::ShardRecord> record,
                  std::vector<std::size_t> chunks, ChunkSink sink,
                  const storage::TransferHooks& hooks) override;

 private:
  os::FileSystem& files_;
  const std::string directory_;
  const std::shared_ptr<const format::Manifest> manifest_;
};

}  // namespace ckpt::gather
