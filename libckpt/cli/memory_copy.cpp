#include "cli/memory_copy.hpp"

#include <cstring>
#include <numeric>

#include "base/units.hpp"
#include "node/lent_step.hpp"
#include "storage/copy_streamed.hpp"

namespace ckpt::cli {

namespace {

// These few Chunks together are one answer of the daemon.
Task<void> read_chunks(const StoredStep& step, const MemoryCopyOrder& order,
                       std::shared_ptr<const format::ShardRecord> record, format::Extent range,
                       std::span<std::byte> target) {
  if (order.is_cancelled && order.is_cancelled())
    co_return fail(Errc::cancelled, "copy: it was interrupted");
  std::vector<std::size_t> chunks(div_ceil(range.bytes, record->chunk_bytes));
  std::iota(chunks.begin(), chunks.end(), range.offset / record->chunk_bytes);
  gather::ChunkSink sink;
  sink.take = [&](std::size_t index, std::span<const std::byte> bytes) {
    const auto place = target.subspan(record->chunk(index).offset - range.offset, bytes.size());
    std::memcpy(place.data(), bytes.data(), bytes.size());
  };
  const storage::TransferHooks hooks;
  Status read = co_await step.shards->read(record, std::move(chunks), std::move(sink), hooks);
  co_return read;
}

Task<storage::ShardStream> shard_of(const StoredStep& step, const MemoryCopyOrder& order,
                                    std::uint32_t rank) {
  storage::ShardStream shard;
  CKPT_CO_TRY(shard.record, co_await step.shards->whole_record(rank));
  shard.chunks_at_once = node::lent_chunks_max;
  shard.read = [&step, &order, record = shard.record](format::Extent range,
                                                      std::span<std::byte> target) {
    return read_chunks(step, order, record, range, target);
  };
  co_return shard;
}

}  // namespace

Task<storage::Copied> copy_from_memory(storage::Site target, std::shared_ptr<StoredStep> step,
                                       MemoryCopyOrder order) {
  storage::CopyOrder copy;
  copy.streamed_from = step->directory;
  copy.manifest = step->manifest;
  copy.timelines = std::make_shared<const format::Timelines>(step->memory->timelines());
  copy.attempt = order.attempt;
  copy.hooks.verified = order.done;
  auto shard = [&](std::uint32_t rank) { return shard_of(*step, order, rank); };
  auto copied = co_await storage::copy_streamed(target, std::move(copy), std::move(shard));
  co_return copied;
}

}  // namespace ckpt::cli
