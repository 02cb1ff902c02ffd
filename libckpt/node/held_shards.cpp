#include "node/held_shards.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "os/scratch_memory.hpp"
#include "replicate/joint_fetch.hpp"

namespace ckpt::node {

using arena::Slot;
using format::ShardRecord;

std::uint32_t HeldShards::shard_count() const {
  return static_cast<std::uint32_t>(start_.digests.size());
}

std::shared_ptr<Slot> HeldShards::held_here(std::uint32_t rank) const {
  return slots_.find({start_.base.value(), rank}, start_.digests.at(rank));
}

std::vector<std::string> HeldShards::peers_of(std::uint32_t rank) const {
  std::vector<std::string> peers = start_.holders.at(rank);
  std::erase(peers, facts_.node);
  return peers;
}

Task<std::shared_ptr<const ShardRecord>> HeldShards::whole_record(std::uint32_t rank) {
  if (records_.at(rank)) co_return records_[rank];
  if (const std::shared_ptr<Slot> slot = held_here(rank)) {
    records_[rank] = slot->record();
    co_return records_[rank];
  }
  const format::ShardId id{start_.base.value(), rank};
  replicate::HolderFailures failures;
  for (const std::string& peer : peers_of(rank)) {
    std::string name = peer;
    auto record = co_await replication_.fetch_record(std::move(name), id, start_.digests.at(rank));
    if (record) {
      records_[rank] = std::move(*record);
      co_return records_[rank];
    }
    failures.add(peer, std::move(record).error());
  }
  std::optional<Error> memory;
  if (!failures.empty()) memory = failures.error();
  auto stored = co_await storage_.reads().record_of(id, start_.digests.at(rank));
  if (!stored) co_return fail(storage_failed(rank, std::move(stored).error(), std::move(memory)));
  records_[rank] = std::move(*stored);
  co_return records_[rank];
}

// The error, and the reaction, when storage has not helped either. `memory`: why memory did not.
Error HeldShards::storage_failed(std::uint32_t rank, Error error, std::optional<Error> memory) {
  const format::ShardId id{start_.base.value(), rank};
  storage_.note_if_damaged(id, error, start_.from_storage);
  if (error.code() != Errc::not_found) return error;
  if (memory) return std::move(*memory);
  // Never not_found: to a trainer it would mean that there is nothing to restore.
  return Error(Errc::unavailable,
               fmt::format("step {} rank {}: no node has a copy of it, and storage has none: {}",
                           number(id.at.step), rank, error.message()));
}

Task<gather::Excerpt> HeldShards::look(std::uint32_t rank, std::vector<std::string> names) {
  CKPT_ASSERT(std::ranges::is_sorted(names));
  gather::Excerpt excerpt;
  CKPT_CO_TRY(excerpt.record, co_await whole_record(rank));
  for (const format::TensorPlace& tensor : excerpt.record->layout.tensors)
    if (std::ranges::binary_search(names, tensor.name)) excerpt.tensors.push_back(tensor);
  co_return excerpt;
}

Task<void> HeldShards::read(std::shared_ptr<const ShardRecord> record,
                            std::vector<std::size_t> chunks, TakeChunk take,
                            const storage::TransferHooks& hooks) {
  if (std::shared_ptr<Slot> slot = held_here(record->id.rank)) {
    CKPT_CO_TRY(chunks,
                co_await read_here(std::move(slot), std::move(chunks), take, hooks.compute));
  }
  if (chunks.empty()) co_return Status();
  const std::uint32_t rank = record->id.rank;
  std::vector<std::size_t> asked = chunks;
  Status from_memory = co_await read_from_peers(record, std::move(asked), take);
  if (from_memory) co_return Status();
  Status stored = co_await storage_.reads().read_chunks(std::move(record), std::move(chunks),
                                                        std::move(take), hooks);
  if (!stored)
    co_return fail(storage_failed(rank, std::move(stored).error(), std::move(from_memory).error()));
  was_storage_read_ = true;
  co_return Status();
}

// Returns the Chunks that have to come from elsewhere.
Task<std::vector<std::size_t>> HeldShards::read_here(std::shared_ptr<Slot> slot,
                                                     std::vector<std::size_t> chunks,
                                                     const TakeChunk& take, Compute* compute) {
  const arena::Lease lease(slot);
  for (auto next = chunks.begin(); next != chunks.end(); ++next) {
    const format::Extent extent = lease.record().chunk(*next);
    const std::span<const std::byte> bytes = lease.bytes().subspan(extent.offset, extent.bytes);
    CKPT_CO_TRY(const Crc32 crc, co_await crc32_on(compute, bytes));
    if (crc != lease.record().chunk_crcs.at(*next)) {
      slots_.quarantine(lease.record().id, start_.digests.at(lease.record().id.rank));
      co_return std::vector<std::size_t>(next, chunks.end());
    }
    take(*next, bytes);
  }
  co_return std::vector<std::size_t>();
}

// They lie at their places of the shard here, too, for which only the pages of these Chunks are
// needed.
Task<void> HeldShards::read_from_peers(std::shared_ptr<const ShardRecord> record,
                                       std::vector<std::size_t> chunks, const TakeChunk& take) {
  std::vector<std::string> peers = peers_of(record->id.rank);
  if (peers.empty())
    co_return fail(Errc::corruption,
                   fmt::format("step {} rank {}: the copy in memory is damaged, and no other node "
                               "has one",
                               number(record->id.at.step), record->id.rank));
  CKPT_CO_TRY(const os::ScratchMemory scratch, os::ScratchMemory::map(record->bytes));
  replicate::ChunkSet unwanted(record->chunk_crcs.size());
  for (std::size_t index = 0; index < record->chunk_crcs.size(); ++index)
    if (!std::ranges::binary_search(chunks, index)) unwanted.insert(index);
  std::vector<std::string> asked = peers;
  CKPT_CO_CHECK(co_await replication_.fetch(std::move(asked), record, scratch.bytes(),
                                            std::move(unwanted), nullptr));
  peers_read_.insert(peers.begin(), peers.end());
  for (const std::size_t index : chunks) {
    const format::Extent extent = record->chunk(index);
    take(index, scratch.bytes().subspan(extent.offset, extent.bytes));
  }
  co_return Status();
}

}  // namespace ckpt::node
