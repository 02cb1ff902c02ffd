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

Status check_shared(const format::ShardRecord& record, std::span<const std::byte> slot,
                    const RestorePlan& plan) {
  for (const SharedTensors& shared : plan.shared) {
    const auto& kept = record.layout.tensors[shared.kept];
    const auto& other = record.layout.tensors[shared.other];
    const bool is_equal = std::memcmp(slot.data() + kept.extent.offset,
                                      slot.data() + other.extent.offset, kept.extent.bytes) == 0;
    if (!is_equal)
      return fail(Errc::invalid_argument,
                  fmt::format("restore step {}: tensors \"{}\" and \"{}\" share memory here but "
                              "differ there",
                              number(record.id.at.step), kept.name, other.name));
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
  CKPT_POINT("restore.before_copy");
  for (device::Device* device : means.devices) CKPT_CHECK(device->quiesce(means.deadline));
  Status status;
  {
    ChunkRestore restore(record, slot, plan, means);
    status = restore.run();
  }
  if (status) status = check_shared(record, slot, plan);
  // Also after a failure: a queued copy must not read a Slot that may have another owner by then.
  for (device::Device* device : means.devices) {
    Status settled = device->settle(means.deadline);
    if (status) status = std::move(settled);
  }
  return status;
}

}  // namespace ckpt::snapshot
