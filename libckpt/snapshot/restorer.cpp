#include "snapshot/restorer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "os/cores.hpp"

namespace ckpt::snapshot {

namespace {

class ChunkRestore final : public device::CopyThreads::Work {
 public:
  ChunkRestore(const format::ShardRecord& record, std::span<const std::byte> slot,
               const RestorePlan& plan, const RestoreMeans& means)
      : Work(record.chunk_crcs.size()),
        record_(record),
        slot_(slot),
        plan_(plan),
        means_(means),
        caller_(std::this_thread::get_id()) {}
  ~ChunkRestore() override { means_.threads.retire(*this); }

  Status run() {
    means_.threads.start(*this);
    Status status = means_.threads.help(*this, means_.deadline);
    if (!status) has_failed_.store(true, std::memory_order_relaxed);  // The rest is skipped.
    means_.threads.retire(*this);
    report(0);  // The bytes that others copied last.
    return failure_ ? std::move(status) : std::move(failure_);
  }

 private:
  void carry_out(std::size_t chunk) override {
    if (has_failed_.load(std::memory_order_relaxed)) return;
    Status status = restore(chunk);
    if (status) return report(record_.chunk(chunk).bytes);
    if (has_failed_.exchange(true)) return;
    failure_ = std::move(status);
  }
  void ended() override {}

  Status restore(std::size_t chunk);
  void report(std::uint64_t bytes);
  Unexpected mismatch(std::size_t chunk) const;

  const format::ShardRecord& record_;
  const std::span<const std::byte> slot_;
  const RestorePlan& plan_;
  const RestoreMeans& means_;
  const std::thread::id caller_;
  std::atomic<std::uint64_t> unreported_bytes_{0};
  std::atomic<bool> has_failed_{false};
  Status failure_;  // Written by the one thread that set has_failed_.
};

Status ChunkRestore::restore(std::size_t chunk) {
  const format::Extent extent = record_.chunk(chunk);
  if (crc32(slot_.subspan(extent.offset, extent.bytes)) != record_.chunk_crcs[chunk])
    return mismatch(chunk);
  for (std::size_t i = plan_.first_piece[chunk]; i < plan_.first_piece[chunk + 1]; ++i) {
    const RestorePiece& piece = plan_.pieces[i];
    CKPT_ASSERT(piece.slot_offset >= extent.offset);
    CKPT_ASSERT(piece.slot_offset + piece.bytes <= extent.end());
    const auto source = slot_.subspan(piece.slot_offset, piece.bytes);
    CKPT_CHECK(means_.devices[piece.device]->copy_in(piece.target, source));
  }
  return {};
}

void ChunkRestore::report(std::uint64_t bytes) {
  unreported_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (!means_.copied || std::this_thread::get_id() != caller_) return;
  means_.copied(unreported_bytes_.exchange(0, std::memory_order_relaxed));
}

Unexpected ChunkRestore::mismatch(std::size_t chunk) const {
  const std::size_t first = plan_.first_piece[chunk];
  const std::size_t count = plan_.first_piece[chunk + 1] - first;
  std::string what = "no tensor";
  if (count > 0) {
    what = fmt::format("tensor \"{}\"", record_.layout.tensors[plan_.pieces[first].tensor].name);
    if (count > 1) what += fmt::format(" and {} more", count - 1);
  }
  return fail(Errc::corruption,
              fmt::format("restore step {} of rank {}: chunk {} ({}) does not match its checksum",
                          number(record_.id.at.step), record_.id.rank, chunk, what));
}

// A difference may be damage, too, and then another copy of the shard will do.
Status check_chunks(const format::ShardRecord& record, std::span<const std::byte> slot,
                    std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t chunk = begin / record.chunk_bytes; chunk * record.chunk_bytes < end;
       ++chunk) {
    const format::Extent extent = record.chunk(chunk);
    if (crc32(slot.subspan(extent.offset, extent.bytes)) == record.chunk_crcs[chunk]) continue;
    return fail(Errc::corruption,
                fmt::format("restore step {} of rank {}: chunk {} does not match its checksum",
                            number(record.id.at.step), record.id.rank, chunk));
  }
  return {};
}

Status check_shared(const format::ShardRecord& record, std::span<const std::byte> slot,
                    const RestorePlan& plan) {
  for (const SharedBytes& shared : plan.shared) {
    const std::uint64_t begin = shared.slot_offset, other = shared.other_slot_offset;
    if (std::memcmp(slot.data() + begin, slot.data() + other, shared.bytes) == 0) continue;
    CKPT_CHECK(check_chunks(record, slot, begin, begin + shared.bytes));
    CKPT_CHECK(check_chunks(record, slot, other, other + shared.bytes));
    const auto& tensors = record.layout.tensors;
    return fail(Errc::invalid_argument,
                fmt::format("restore step {}: tensors \"{}\" and \"{}\" share memory here but "
                            "differ there: restore into tensors that are apart, as they were saved",
                            number(record.id.at.step), tensors[shared.tensor].name,
                            tensors[shared.other].name));
  }
  return {};
}

}  // namespace

std::uint32_t restore_threads(std::uint32_t copy_threads) {
  constexpr std::size_t threads_max = 8;
  const auto cores = os::cores_of(0);
  const std::size_t wanted = cores ? std::min(cores->count(), threads_max) : 1;
  return std::max(copy_threads, static_cast<std::uint32_t>(wanted));
}

Status restore_tensors(const format::ShardRecord& record, std::span<const std::byte> slot,
                       const RestorePlan& plan, const RestoreMeans& means) {
  CKPT_ASSERT(plan.first_piece.size() == record.chunk_crcs.size() + 1);
  if (slot.size() < record.bytes)
    return fail(Errc::corruption,
                fmt::format("restore step {}: {} bytes where {} must be", number(record.id.at.step),
                            slot.size(), record.bytes));
  CKPT_CHECK(check_shared(record, slot, plan));
  CKPT_POINT("restore.before_copy");
  for (device::Device* device : means.devices) CKPT_CHECK(device->quiesce(means.deadline));
  if (means.before_overwriting) means.before_overwriting();
  Status status;
  {
    ChunkRestore restore(record, slot, plan, means);
    status = restore.run();
  }
  // Also after a failure: a queued copy must not read a Slot that may have another owner by then.
  for (device::Device* device : means.devices) {
    Status settled = device->settle(means.deadline);
    if (status) status = std::move(settled);
  }
  return status;
}

}  // namespace ckpt::snapshot
