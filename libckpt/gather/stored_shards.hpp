// StoredShards: the shards of a published checkpoint, read from its files, in one place or in
// several: what is damaged in one is taken from the next.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "format/manifest.hpp"
#include "gather/shard_source.hpp"
#include "os/file_system.hpp"
#include "storage/open_step.hpp"

namespace ckpt::gather {

// Reads these Chunks of a shard, some at a time. Arguments live until it ends.
Task<void> read_stored_chunks(storage::StepShard shard,
                              std::shared_ptr<const format::ShardRecord> record,
                              std::vector<std::size_t> chunks, ChunkSink sink,
                              const storage::TransferHooks& hooks);

class StoredShards final : public ShardSource {
 public:
  StoredShards(os::FileSystem& files, std::string step_directory,
               std::shared_ptr<const format::Manifest> manifest)
      : StoredShards(files, std::vector<storage::StepCopy>{
                                {std::move(step_directory), std::move(manifest)}}) {}
  explicit StoredShards(const storage::OpenStep& step)
      : StoredShards(step.site().files(), std::vector<storage::StepCopy>{step.copy()}) {}
  // Copies of one save; the nearest is first, and there is one.
  StoredShards(os::FileSystem& files, std::vector<storage::StepCopy> copies)
      : files_(files), copies_(std::move(copies)) {}

  std::uint32_t shard_count() const override { return copies_.front().manifest->world_size; }
  // Reads only the front of the part and the blocks that may have these names.
  Task<Excerpt> look(std::uint32_t rank, std::vector<std::string> names) override;
  Task<std::shared_ptr<const format::ShardRecord>> whole_record(std::uint32_t rank) override;
  Task<void> read(std::shared_ptr<const format::ShardRecord> record,
                  std::vector<std::size_t> chunks, ChunkSink sink,
                  const storage::TransferHooks& hooks) override;

 private:
  os::FileSystem& files_;
  const std::vector<storage::StepCopy> copies_;
};

}  // namespace ckpt::gather
