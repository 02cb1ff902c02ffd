#include "device/host_device.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.hpp"
#include "base/streaming_copy.hpp"
#include "base/units.hpp"
#include "device/host_hash_run.hpp"
#include "os/fault_in.hpp"

namespace ckpt::device {

namespace {

// A target of this size or more is not expected to be read from a cache soon, as in crc32_copy.
constexpr std::size_t streaming_bytes_min = 256 * KiB;

// Pages that the kernel has just cleared are still in a cache when they are written.
constexpr std::size_t faulted_bytes = MiB;

void copy(std::span<std::byte> target, std::span<const std::byte> source) {
  if (source.size() < streaming_bytes_min) {
    if (!source.empty()) std::memcpy(target.data(), source.data(), source.size());
    return;
  }
  streaming_copy(target, source);
  streaming_copies_done();
}

Crc32 fill_with_zeros(std::span<std::byte> target, bool with_checksum, Crc32 before) {
  std::memset(target.data(), 0, target.size());
  return with_checksum ? crc32(target, before) : 0;
}

class HostRun final : public CopyRun, private CopyThreads::Work {
 public:
  HostRun(CopyThreads& threads, CopyList list, CopyListener& listener)
      : Work(list.strips.size()),
        threads_(threads),
        list_(std::move(list)),
        crcs_(list_.strips.size()),
        listener_(listener) {}
  ~HostRun() override { threads_.retire(*this); }

  Status start(const CopyStart& start) override {
    for (const Strip& strip : list_.strips) {
      CKPT_ASSERT(strip.slot_offset + strip.bytes <= start.slot.size());
    }
    slot_ = start.slot;
    with_checksums_ = start.with_checksums;
    threads_.start(*this);
    return {};
  }
  Status fence(Stream) override {
    return threads_.help(*this, std::chrono::steady_clock::now() + host_fence_deadline);
  }
  Status wait_idle(Deadline deadline) override { return threads_.wait_idle(*this, deadline); }
  std::span<const Crc32> checksums() const override {
    return with_checksums_ ? std::span<const Crc32>(crcs_) : std::span<const Crc32>();
  }

 private:
  void carry_out(std::size_t index) override;
  void ended() override { listener_.run_ended({}); }

  CopyThreads& threads_;
  const CopyList list_;
  std::vector<Crc32> crcs_;
  CopyListener& listener_;
  std::span<std::byte> slot_;  // The Slot of the active run.
  bool with_checksums_ = false;
};

void HostRun::carry_out(std::size_t index) {
  const Strip& strip = list_.strips[index];
  Crc32 crc = 0;
  const auto pieces = std::span(list_.pieces).subspan(strip.first_piece, strip.piece_count);
  for (const CopyPiece& piece : pieces) {
    const auto target = slot_.subspan(piece.slot_offset, piece.bytes);
    if (piece.source == nullptr) {
      crc = fill_with_zeros(target, with_checksums_, crc);
    } else if (with_checksums_) {
      crc = crc32_copy(target, {piece.source, piece.bytes}, crc);
    } else {
      copy(target, {piece.source, piece.bytes});
    }
  }
  crcs_[index] = crc;
}

}  // namespace

std::unique_ptr<CopyRun> HostDevice::make_run(CopyList list, CopyListener& listener) {
  return std::make_unique<HostRun>(threads_, std::move(list), listener);
}

std::unique_ptr<HashRun> HostDevice::make_hash_run(std::vector<std::span<const std::byte>> sources,
                                                   CopyListener& listener) {
  return std::make_unique<HostHashRun>(threads_, std::move(sources), listener);
}

Status HostDevice::copy_in(std::byte* target, std::span<const std::byte> source) {
  while (!source.empty()) {
    const auto part = source.first(std::min(source.size(), faulted_bytes));
    os::fault_in({target, part.size()});  // A new process has not touched its tensors yet.
    copy({target, part.size()}, part);
    target += part.size();
    source = source.subspan(part.size());
  }
  return {};
}

}  // namespace ckpt::device
