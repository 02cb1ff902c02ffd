// StoredShards: the shards of a published checkpoint, read from its files, in one place or in
// several: what is damaged in one is taken from the next.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/assert.hpp"
#include "gather/shard_source.hpp"
#include "storage/open_step.hpp"

namespace ckpt::gather {

// Reads these Chunks of a shard, some at a time. Arguments live until it ends.
Task<void> read_stored_chunks(storage::StepShard shard,
                              std::shared_ptr<const format::ShardRecord> record,
                              std::vector<std::size_t> chunks, ChunkSink sink,
                              const storage::TransferHooks& hooks);

class StoredShards final : public ShardSource {
 public:
  explicit StoredShards(const storage::OpenStep& step) : StoredShards(storage::SaveCopies{step}) {}
  explicit StoredShards(storage::SaveCopies copies) : copies_(std::move(copies)) {
    CKPT_ASSERT(!copies_.empty());
  }

  std::uint32_t shard_count() const override { return copies_.front().manifest()->world_size; }
  // Reads only the front of the part and the blocks that may have these names.
  Task<Excerpt> look(std::uint32_t rank, std::vector<std::string> names) override;
  Task<std::shared_ptr<const format::ShardRecord>> whole_record(std::uint32_t rank) override;
  Task<void> read(std::shared_ptr<const format::ShardRecord> record,
                  std::vector<std::size_t> chunks, ChunkSink sink,
                  const storage::TransferHooks& hooks) override;

 private:
  const storage::SaveCopies copies_;
};

}  // namespace ckpt::gather
