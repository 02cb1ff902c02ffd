// ShardSource: where the shards of one step are read from: files, or the memory of nodes.
//
// Lifetime: until the last Task of a call has ended. Several calls may run at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/task.hpp"
#include "format/shard_record.hpp"
#include "gather/chunk_sink.hpp"
#include "storage/member_writer.hpp"

namespace ckpt::gather {

// Excerpt: a shard as far as a reader of some tensors has to know it.
struct Excerpt {
  std::shared_ptr<const format::ShardRecord> record;  // Perhaps without tensors.
  std::vector<format::TensorPlace> tensors;           // Those of wanted names, and their parts.
};

// Descriptions are small, and many shards may have no wanted name.
inline constexpr std::size_t looks_in_flight = 16;

// Where a shard is read from first; nearer ones are smaller.
enum class Nearness : std::uint8_t { own_memory, peer_memory, storage };

class ShardSource {
 public:
  virtual ~ShardSource() = default;

  virtual std::uint32_t shard_count() const = 0;  // The number of ranks that saved the step.

  // The nearest of the copies that ranks declared is read.
  virtual Nearness nearness(std::uint32_t /*rank*/) const { return Nearness::storage; }

  // `names` ascend. Parts that are named after their place come, too (format::tensor_name_of).
  // Errors: corruption (the description is damaged), unavailable, io.
  virtual Task<Excerpt> look(std::uint32_t rank, std::vector<std::string> names) = 0;
  // The record with all of its tensors. Errors: as look().
  virtual Task<std::shared_ptr<const format::ShardRecord>> whole_record(std::uint32_t rank) = 0;

  // Gives each of these Chunks to the sink, in any order. `record` is what look() returned. Errors:
  // corruption (names the shard and the Chunk), unavailable, io.
  virtual Task<void> read(std::shared_ptr<const format::ShardRecord> record,
                          std::vector<std::size_t> chunks, ChunkSink sink,
                          const storage::TransferHooks& hooks) = 0;
};

}  // namespace ckpt::gather
