#include "node/shard_fill.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "replicate/joint_fetch.hpp"

namespace ckpt::node {

using arena::Slot;

std::string name_of(const std::vector<std::string>& nodes) {
  return fmt::format("{} {}", nodes.size() == 1 ? "node" : "nodes", fmt::join(nodes, ", "));
}
std::string name_of(const CopySource& source) {
  if (std::holds_alternative<Storage>(source)) return "storage";
  const auto* peers = std::get_if<PeerMemory>(&source);
  return peers != nullptr ? name_of(peers->nodes) : "own memory";
}

ShardFill::ShardFill(Parts parts, format::ShardId id, Digest digest, Report report)
    : facts_(parts.facts),
      slots_(parts.slots),
      replication_(parts.replication),
      storage_(parts.storage),
      room_(parts.room),
      id_(id),
      digest_(digest),
      report_(std::move(report)) {}

ShardFill::~ShardFill() {
  if (is_filling()) target_->abandon();
}

// False also when the job's memory was freed meanwhile.
bool ShardFill::is_filling() const {
  return target_ && target_->state() == Slot::State::filling && target_->id() == id_;
}

std::span<std::byte> ShardFill::bytes_of(std::size_t chunk) const {
  const format::Extent extent = record_->chunk(chunk);
  return target_->memory().bytes().subspan(extent.offset, extent.bytes);
}

// Goes on with the Slot that an earlier source has begun to fill.
Status ShardFill::begin(std::shared_ptr<const format::ShardRecord> record) {
  CKPT_ASSERT(record != nullptr);
  if (is_filling()) return {};
  CKPT_ASSERT(!have_ || !target_);
  CKPT_TRY(target_, room_.take(id_, record->bytes));
  have_.emplace(record->chunk_crcs.size());
  record_ = std::move(record);
  return {};
}

Task<std::shared_ptr<Slot>> ShardFill::seal_if_whole(Status came) {
  if (target_ && !is_filling()) {
    target_.reset();
    have_.reset();
    co_return fail(Errc::cancelled, "memory freed");
  }
  if (target_ && have_->is_full()) {
    target_->filled();
    target_->seal(record_);
    have_.reset();
    co_return std::exchange(target_, nullptr);
  }
  CKPT_ASSERT(!came);
  co_return fail(std::move(came).error());
}

Task<std::shared_ptr<Slot>> ShardFill::fill_from(CopySource source) {
  if (!is_filling()) CKPT_CO_CHECK(co_await room_.wait_for_making(id_));
  Status came;
  if (auto* peers = std::get_if<PeerMemory>(&source)) {
    came = co_await fill_from_peers(std::move(peers->nodes));
  } else if (std::holds_alternative<Storage>(source)) {
    const std::uint64_t before = verified_bytes();
    came = co_await fill_from_storage();
    bytes_from_storage_ += std::max(verified_bytes(), before) - before;
    if (!came) storage_error_.emplace(came.error());
  } else {
    came = co_await fill_from_here();
  }
  auto slot = co_await seal_if_whole(std::move(came));
  co_return slot;
}

Task<std::shared_ptr<Slot>> ShardFill::fill_from_damaged(SourceChoice places) {
  std::vector<PutAside::SharedLease> put_aside;
  if (places != SourceChoice::storage) put_aside = slots_.find_damaged(id_, digest_);
  for (const PutAside::SharedLease& lease : put_aside) {
    CKPT_CO_CHECK(begin(lease->shared_record()));
    auto copied = co_await copy_good(*lease);
    if (!copied) co_return fail(std::move(copied).error());
  }
  if (!record_ || !target_) co_return fail(Errc::corruption, "no copy of it has any good chunk");
  const bool may_help =
      places != SourceChoice::memory && is_filling() && have_->count() > 0 && !have_->is_full();
  const std::uint64_t before = verified_bytes();
  if (may_help) (void)co_await read_good_chunks();
  bytes_from_storage_ += std::max(verified_bytes(), before) - before;
  Status rest;
  if (have_ && !have_->is_full())
    rest = fail(Errc::corruption, fmt::format("{} of its {} chunks are good in no copy",
                                              have_->size() - have_->count(), have_->size()));
  const bool is_whole = rest.has_value();
  auto slot = co_await seal_if_whole(std::move(rest));
  if (slot && is_whole)
    log_warning(
        "job={} step={} rank={} was put together from copies that are damaged in different "
        "chunks",
        facts_.shape.job, number(id_.at.step), id_.rank);
  co_return slot;
}

// Returns false if some Chunk of it is damaged.
Task<bool> ShardFill::copy_good(const arena::Lease& lease) {
  const format::ShardRecord& record = lease.record();
  const BytesVerified filled = report_("own memory", record.bytes);
  bool is_good = true;
  for (std::size_t index = 0; index < record.chunk_crcs.size(); ++index) {
    if (!is_filling()) co_return fail(Errc::cancelled, "memory freed");
    if (have_->contains(index)) continue;
    const format::Extent chunk = record.chunk(index);
    const auto to = bytes_of(index);
    const auto from = lease.bytes().subspan(chunk.offset, chunk.bytes);
    Crc32 crc = 0;
    std::function<void()> copy = [&crc, to, from] { crc = crc32_copy(to, from); };
    CKPT_CO_CHECK(co_await run_on(facts_.context.seams.compute, std::move(copy)));
    if (crc != record.chunk_crcs[index]) {
      is_good = false;
      continue;
    }
    have_->insert(index);
    filled(chunk.bytes);
  }
  co_return is_good;
}

Task<void> ShardFill::fill_from_here() {
  const std::shared_ptr<Slot> source = slots_.find(id_, digest_);
  if (!source) co_return fail(Errc::not_found, "no copy in this node's memory");
  for (const OwnSlot& own : slots_.own(id_.rank).slots) {
    // It was offered already.
    if (own.slot == source) co_return fail(Errc::not_found, "no other copy in memory");
  }
  const arena::Lease lease(source);
  CKPT_CO_CHECK(begin(lease.shared_record()));
  CKPT_CO_TRY(const bool is_good, co_await copy_good(lease));
  if (is_good) co_return Status();
  slots_.quarantine(lease);
  co_return fail(Errc::corruption,
                 fmt::format("copy in memory: a chunk of step {} is damaged", number(id_.at.step)));
}

Task<void> ShardFill::fill_from_peers(std::vector<std::string> peers) {
  CKPT_POINT("load.peer.first");
  replicate::HolderFailures failures;
  std::shared_ptr<const format::ShardRecord> record;
  while (!record && !peers.empty()) {
    auto fetched = co_await replication_.fetch_record(peers.front(), id_, digest_);
    if (fetched) {
      record = std::move(*fetched);
    } else {
      failures.add(peers.front(), std::move(fetched).error());
      peers.erase(peers.begin());
    }
  }
  if (!record) co_return fail(failures.error());
  CKPT_CO_CHECK(begin(std::move(record)));
  const BytesVerified filled = report_(name_of(peers), record_->bytes);
  Replication::OnChunk on_chunk = [this, &filled](std::size_t index) {
    have_->insert(index);
    filled(record_->chunk(index).bytes);
  };
  const std::span<std::byte> bytes = target_->memory().bytes().first(record_->bytes);
  replicate::ChunkSet have = *have_;
  auto fetched = co_await replication_.fetch(std::move(peers), record_, bytes, std::move(have),
                                             std::move(on_chunk));
  CKPT_POINT("load.peer.last");
  co_return fetched;
}

std::uint64_t ShardFill::verified_bytes() const {
  std::uint64_t bytes = 0;
  for (std::size_t index = 0; is_filling() && index < have_->size(); ++index)
    if (have_->contains(index)) bytes += record_->chunk(index).bytes;
  return bytes;
}

// An error is to be noted also where the rest is whole: what was damaged is healed later.
Task<void> ShardFill::fill_from_storage() {
  CKPT_POINT("load.disk.read");
  const bool has_some = is_filling() && have_->count() > 0;
  auto record = co_await storage_.reads().record_of(id_, digest_);
  Status read = record ? Status() : fail(record.error());
  if (record) {
    CKPT_CO_CHECK(begin(std::move(*record)));
    read = co_await read_missing(has_some);
    CKPT_POINT("load.verify");
  }
  const bool is_damaged = !read && read.error().code() == Errc::corruption;
  const bool may_help = has_some || storage_.reads().has_two_places();
  if (is_damaged && may_help && is_filling()) (void)co_await read_good_chunks();
  co_return read;
}

// From the nearest place that has it, many Chunks at once.
Task<void> ShardFill::read_missing(bool has_some) {
  BytesVerified filled = report_("storage", record_->bytes);
  if (!has_some) {
    const std::span<std::byte> place = target_->memory().bytes().first(record_->bytes);
    Status whole = co_await storage_.reads().read(record_, place, std::move(filled));
    if (whole && is_filling())
      for (std::size_t index = 0; index < have_->size(); ++index) have_->insert(index);
    co_return whole;
  }
  std::vector<std::size_t> missing;
  for (std::size_t index = 0; index < have_->size(); ++index)
    if (!have_->contains(index)) missing.push_back(index);
  gather::ChunkSink sink;
  sink.places = [this](std::size_t index) { return std::vector{bytes_of(index)}; };
  sink.take = [this, &filled](std::size_t index, std::span<const std::byte> bytes) {
    if (!is_filling()) return;
    std::ranges::copy(bytes, bytes_of(index).begin());  // Nothing, where it came to its place.
    have_->insert(index);
    filled(record_->chunk(index).bytes);
  };
  storage::TransferHooks hooks;
  hooks.compute = facts_.context.seams.compute;
  Status read =
      co_await storage_.reads().read_chunks(record_, std::move(missing), std::move(sink), hooks);
  co_return read;
}

Task<void> ShardFill::read_good_chunks() {
  const BytesVerified filled = report_("storage", record_->bytes);
  StoredReads::MissingChunks missing;
  missing.next = [this](std::size_t from) {
    while (is_filling() && from < have_->size() && have_->contains(from)) ++from;
    return is_filling() ? from : have_->size();
  };
  missing.place = [this](std::size_t index) { return bytes_of(index); };
  missing.came = [this, &filled](std::size_t index) {
    if (!is_filling()) return;
    have_->insert(index);
    filled(record_->chunk(index).bytes);
  };
  Status read = co_await storage_.reads().read_good(record_, std::move(missing));
  co_return read;
}

}  // namespace ckpt::node
