// ShardSource: where the shards of one step are read from: files, or the memory of nodes.
//
// Lifetime: until the last Task of a call has ended. Several calls may run at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/task.hpp"
#include "format/shard_record.hpp"
#include "storage/member_writer.hpp"

namespace ckpt::gather {

// Excerpt: a shard as far as a reader of some tensors has to know it.
struct Excerpt {
  std::shared_ptr<const format::ShardRecord> record;  // Perhaps without tensors.
  std::vector<format::TensorPlace> tensors;           // Those of wanted names.
};

// ChunkSink: takes the Chunks of a shard, each once, when it is verified.
struct ChunkSink {
  // Empty `bytes`: they lie in their places.
  std::function<void(std::size_t index, std::span<const std::byte> bytes)> take;
  // Where all bytes of a Chunk belong, in their order: a source may put them there before it has
  // verified them. Empty, or null: they are passed to `take`.
  std::function<std::vector<std::span<std::byte>>(std::size_t index)> places;
  // Brings a verified Chunk to its places, on any thread, other Chunks at the same time; `take`
  // then gets no bytes. Empty: `take` does it.
  std::function<void(std::size_t index, std::span<const std::byte> bytes)> copy;

  std::vector<std::span<std::byte>> places_of(std::size_t index) const {
    return places ? places(index) : std::vector<std::span<std::byte>>();
  }
};

class ShardSource {
 public:
  virtual ~ShardSource() = default;

  virtual std::uint32_t shard_count() const = 0;  // The number of ranks that saved the step.

  // `names` ascend. Errors: corruption (the description is damaged), unavailable, io.
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
