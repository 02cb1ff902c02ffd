// KnownShards: the shards of another source, whose descriptions were read once and are kept.
//
// A reader of many tensors, some at a time, asks for these descriptions again and again.
//
// Lifetime: the source outlives it. Memory: all records, with their tensors.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gather/shard_source.hpp"

namespace ckpt::gather {

class KnownShards final : public ShardSource {
 public:
  // Errors: those of the source.
  static Task<std::shared_ptr<KnownShards>> read(ShardSource& source);

  const format::ShardRecord& record(std::uint32_t rank) const { return *shards_.at(rank).record; }

  std::uint32_t shard_count() const override { return static_cast<std::uint32_t>(shards_.size()); }
  Nearness nearness(std::uint32_t rank) const override { return source_.nearness(rank); }
  Task<Excerpt> look(std::uint32_t rank, std::vector<std::string> names) override;
  Task<std::shared_ptr<const format::ShardRecord>> whole_record(std::uint32_t rank) override;
  Task<void> read(std::shared_ptr<const format::ShardRecord> record,
                  std::vector<std::size_t> chunks, ChunkSink sink,
                  const storage::TransferHooks& hooks) override;

 private:
  struct Known {
    std::shared_ptr<const format::ShardRecord> record;
    std::vector<std::uint32_t> by_name;  // Places in layout.tensors, by ascending name.
  };
  explicit KnownShards(ShardSource& source) : source_(source) {}
  Task<void> learn(std::size_t rank);
  static void add_parts(const Known& known, const std::string& name,
                        std::span<const std::string> asked, Excerpt& excerpt);

  ShardSource& source_;
  std::vector<Known> shards_;
};

}  // namespace ckpt::gather
