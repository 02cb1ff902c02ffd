#include "node/held_shards.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "format/piece.hpp"
#include "node/peer_chunks.hpp"
#include "replicate/joint_fetch.hpp"
#include "replicate/shard_fetch.hpp"
#include "storage/parallel.hpp"

namespace ckpt::node {

using arena::Slot;
using format::ShardRecord;

namespace {

constexpr std::size_t chunks_read_here = 4;  // At a time, of a shard: as many threads may copy.

}  // namespace

format::Start start_of_held(format::StepId at, const agree::StepCopies& copies) {
  format::Start start;
  start.base = at;
  for (const std::optional<agree::Copies>& shard : copies) {
    start.digests.push_back(shard->digest);
    start.holders.push_back(shard->nodes);
  }
  return start;
}

std::shared_ptr<gather::ShardSource> open_held(HeldShards::Parts parts, format::Start start) {
  struct Held {
    Held(HeldShards::Parts parts, format::Start its_start)
        : start(std::move(its_start)), shards(std::move(parts), start) {}
    const format::Start start;
    HeldShards shards;
  };
  const auto held = std::make_shared<Held>(std::move(parts), std::move(start));
  return {held, &held->shards};
}

std::uint32_t HeldShards::shard_count() const {
  return static_cast<std::uint32_t>(start_.digests.size());
}

std::shared_ptr<Slot> HeldShards::held_here(std::uint32_t rank) const {
  if (start_.source == SourceChoice::storage) return nullptr;
  return slots_.find({start_.base.value(), rank}, start_.digests.at(rank));
}

std::vector<std::string> HeldShards::peers_of(std::uint32_t rank) const {
  std::vector<std::string> peers = start_.holders.at(rank);
  std::erase(peers, facts_.node);
  return peers;
}

gather::Nearness HeldShards::nearness(std::uint32_t rank) const {
  if (held_here(rank) != nullptr) return gather::Nearness::own_memory;
  return peers_of(rank).empty() ? gather::Nearness::storage : gather::Nearness::peer_memory;
}

std::vector<PutAside::SharedLease> HeldShards::damaged_here(std::uint32_t rank) const {
  if (start_.source == SourceChoice::storage) return {};
  return slots_.find_damaged({start_.base.value(), rank}, start_.digests.at(rank));
}

// That of a damaged copy is as good: it did not lie in the Slot.
Task<std::shared_ptr<const ShardRecord>> HeldShards::whole_record(std::uint32_t rank) {
  if (const std::shared_ptr<Slot> slot = held_here(rank)) co_return slot->record();
  if (const auto damaged = damaged_here(rank); !damaged.empty())
    co_return damaged.front()->shared_record();
  SharedRecords::Fetch fetch = [this](std::uint32_t each) { return fetch_record(each); };
  auto record = co_await records_->find_or_fetch(rank, std::move(fetch));
  co_return record;
}

Task<std::shared_ptr<const ShardRecord>> HeldShards::fetch_record(std::uint32_t rank) {
  const format::ShardId id{start_.base.value(), rank};
  replicate::HolderFailures failures;
  for (const std::string& peer : peers_of(rank)) {
    const Digest digest = start_.digests.at(rank);
    SharedRecords::Dial dial = [this, peer] { return replication_.dial_for_records(peer); };
    SharedRecords::Ask ask = [this, id, digest](SharedRecords::Connection connection) {
      return replication_.fetch_record(std::move(connection), id, digest);
    };
    std::string name = peer;
    auto record = co_await records_->ask_peer(std::move(name), std::move(dial), std::move(ask));
    if (record) co_return std::move(*record);
    failures.add(peer, std::move(record).error());
  }
  std::optional<Error> memory;
  if (!failures.empty()) memory = failures.error();
  if (start_.source == SourceChoice::memory) co_return fail(not_in_memory(rank, std::move(memory)));
  auto stored = co_await storage_.reads().record_of(id, start_.digests.at(rank));
  if (!stored) co_return fail(storage_failed(rank, std::move(stored).error(), std::move(memory)));
  co_return std::move(*stored);
}

// Its memory was freed, or its node has gone, since the vote.
Error HeldShards::not_in_memory(std::uint32_t rank, std::optional<Error> why) const {
  if (why) return std::move(*why);
  return Error(
      Errc::unavailable,
      fmt::format("step {} rank {}: no node has a copy of it, and only memory was asked for",
                  number(start_.base->step), rank));
}

// The error, and the reaction, when storage has not helped either. `memory`: why memory did not.
Error HeldShards::storage_failed(std::uint32_t rank, Error error, std::optional<Error> memory) {
  const format::ShardId id{start_.base.value(), rank};
  storage_.note_if_damaged(id, error, start_.from_storage);
  if (error.code() != Errc::not_found) return error;
  const bool was_in_memory = !start_.holders.at(rank).empty();
  if (memory && was_in_memory) return std::move(*memory);
  // Never not_found: to a trainer it would mean that there is nothing to restore.
  return Error(Errc::unavailable,
               fmt::format("step {} rank {}: no node has a copy of it, and storage has none: {}",
                           number(id.at.step), rank, error.message()));
}

Task<gather::Excerpt> HeldShards::look(std::uint32_t rank, std::vector<std::string> names) {
  CKPT_ASSERT(std::ranges::is_sorted(names));
  CKPT_CO_TRY(const auto record, co_await whole_record(rank));
  gather::Excerpt excerpt;
  std::function<void()> pick = [&excerpt, &names, record] {
    for (const format::TensorPlace& tensor : record->layout.tensors)
      if (format::is_among(names, tensor.name, tensor.piece, tensor.shape))
        excerpt.tensors.push_back(tensor);
    excerpt.record = without_tensors(*record);
  };
  if (record->layout.tensors.size() < replicate::tensors_worth_a_thread) {
    pick();
  } else {
    CKPT_CO_CHECK(co_await run_on(facts_.context.seams.compute, std::move(pick)));
  }
  co_return excerpt;
}

Task<void> HeldShards::read(std::shared_ptr<const ShardRecord> record,
                            std::vector<std::size_t> chunks, gather::ChunkSink sink,
                            const storage::TransferHooks& hooks) {
  std::set<std::size_t> left(chunks.begin(), chunks.end());
  const auto still_wanted = [&left] { return std::vector<std::size_t>(left.begin(), left.end()); };
  std::uint64_t* counter = &bytes_from_memory_;
  gather::ChunkSink take_once = sink;
  take_once.take = [&](std::size_t index, std::span<const std::byte> bytes) {
    CKPT_ASSERT(left.erase(index) == 1);
    sink.take(index, bytes);
    if (sink.wanted_bytes) *counter += sink.wanted_bytes(index);
  };
  const std::uint32_t rank = record->id.rank;
  // A copy that is damaged is put aside, and the next one is found. Each is read once.
  std::set<const Slot*> tried;
  std::shared_ptr<Slot> slot = held_here(rank);
  while (!left.empty() && slot && tried.insert(slot.get()).second) {
    const arena::Lease lease(std::move(slot));
    CKPT_CO_CHECK(co_await read_here(lease, still_wanted(), take_once, hooks.compute));
    slot = held_here(rank);
  }
  if (left.empty()) co_return Status();
  Status came = co_await read_from_peers(record, still_wanted(), take_once, hooks.compute);
  if (came) co_return Status();
  if (start_.source != SourceChoice::memory) {
    const std::size_t before = left.size();
    counter = &bytes_from_storage_;
    Status stored = co_await read_from_storage(rank, still_wanted(), take_once, hooks);
    was_storage_read_ = was_storage_read_ || left.size() < before;
    if (stored) co_return Status();
    came = fail(storage_failed(rank, std::move(stored).error(), std::move(came).error()));
    counter = &bytes_from_memory_;
  }
  // Another reader on this node may have put a copy aside before this one came to it.
  const std::vector<PutAside::SharedLease> put_aside = damaged_here(rank);
  for (const PutAside::SharedLease& damaged : put_aside)
    CKPT_CO_CHECK(co_await read_here(*damaged, still_wanted(), take_once, hooks.compute));
  if (!left.empty()) co_return came;
  co_return Status();
}

// A record that came from memory says nothing of where the files are.
Task<void> HeldShards::read_from_storage(std::uint32_t rank, std::vector<std::size_t> chunks,
                                         gather::ChunkSink sink,
                                         const storage::TransferHooks& hooks) {
  const format::ShardId id{start_.base.value(), rank};
  CKPT_CO_TRY(auto record, co_await storage_.reads().record_of(id, start_.digests.at(rank)));
  auto read = co_await storage_.reads().read_chunks(std::move(record), std::move(chunks),
                                                    std::move(sink), hooks);
  co_return read;
}

// Leaves the Chunks that have to come from elsewhere.
Task<void> HeldShards::read_here(const arena::Lease& lease, std::vector<std::size_t> chunks,
                                 const gather::ChunkSink& sink, Compute* compute) {
  bool is_damaged = false;
  std::function<Task<void>(std::size_t)> read_one = [&](std::size_t number) {
    return read_chunk_here(lease, chunks[number], sink, compute, is_damaged);
  };
  CKPT_CO_CHECK(
      co_await storage::for_each_parallel(chunks.size(), chunks_read_here, std::move(read_one)));
  co_return Status();
}

// A Chunk that is damaged puts the whole copy aside; what is good of it is read all the same, since
// other copies may be damaged elsewhere. The references live until all are read.
Task<void> HeldShards::read_chunk_here(const arena::Lease& lease, std::size_t index,
                                       const gather::ChunkSink& sink, Compute* compute,
                                       bool& is_damaged) {
  const format::Extent extent = lease.record().chunk(index);
  const std::span<const std::byte> bytes = lease.bytes().subspan(extent.offset, extent.bytes);
  const Crc32 expected = lease.record().chunk_crcs.at(index);
  const gather::ChunkInMemory chunk{index, bytes, expected, sink.places_of(index)};
  bool is_good = false;
  std::function<void()> copy = [&] { is_good = gather::bring(sink, chunk); };
  CKPT_CO_CHECK(co_await run_on(compute, std::move(copy)));
  if (is_good) {
    sink.take(index, chunk.is_brought(sink) ? std::span<const std::byte>() : bytes);
  } else if (!std::exchange(is_damaged, true)) {
    slots_.quarantine(lease);
  }
  co_return Status();
}

Task<void> HeldShards::read_from_peers(std::shared_ptr<const ShardRecord> record,
                                       std::vector<std::size_t> chunks,
                                       const gather::ChunkSink& sink, Compute* compute) {
  std::vector<std::string> peers = peers_of(record->id.rank);
  if (peers.empty())
    co_return fail(Errc::corruption,
                   fmt::format("step {} rank {}: the copy in memory is damaged, and no other node "
                               "has one",
                               number(record->id.at.step), record->id.rank));
  replicate::ChunkSet unwanted(record->chunk_crcs.size());
  for (std::size_t index = 0; index < record->chunk_crcs.size(); ++index)
    if (!std::ranges::binary_search(chunks, index)) unwanted.insert(index);
  PeerChunks coming(*record, sink, compute);
  replicate::Destination target = coming.destination();
  Replication::OnChunk on_chunk = [&](std::size_t index) {
    peers_read_.insert(peers.begin(), peers.end());
    coming.take(index);
  };
  std::vector<std::string> asked = peers;
  const Digest digest = start_.digests.at(record->id.rank);
  Status fetched = co_await replication_.fetch(std::move(asked), record, std::move(target),
                                               std::move(unwanted), std::move(on_chunk), digest);
  co_return fetched;
}

}  // namespace ckpt::node
