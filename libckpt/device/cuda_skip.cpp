#include "device/cuda_skip.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.hpp"
#include "device/cuda_check.hpp"

namespace ckpt::device {

Result<std::unique_ptr<CudaSkip>> CudaSkip::make(const CudaDriver& driver, CudaMirrors& mirrors,
                                                 const CudaBatches& plan, const Wanted& wanted) {
  CKPT_ASSERT(wanted.slots > 0);
  CKPT_TRY(auto sums, CudaBatchSums::make(driver, mirrors, plan, wanted.slots + 1));
  return std::unique_ptr<CudaSkip>(new CudaSkip(std::move(sums), plan, wanted));
}

CudaSkip::CudaSkip(std::unique_ptr<CudaBatchSums> sums, const CudaBatches& plan,
                   const Wanted& wanted)
    : sums_(std::move(sums)), checks_all_(wanted.checks_all), areas_(wanted.slots) {
  std::size_t parts_max = 0;
  for (std::size_t batch = 0; batch < plan.batches.size(); ++batch) {
    batch_bytes_.push_back(plan.batches[batch].bytes);
    parts_max = std::max(parts_max, sums_->part_count(batch));
  }
  copied_.resize(batch_bytes_.size());
  is_chosen_.resize(parts_max);
}

void CudaSkip::begin(std::uint64_t generation, std::span<std::byte> slot, bool is_pinned) {
  CKPT_ASSERT(!is_running_);
  running_ = areas_.begin(generation);
  slot_ = slot;
  is_running_ = true;
  may_skip_ = is_pinned && running_.before.has_value();
  bytes_unchanged_ = 0;
  std::ranges::fill(copied_, Copied::without_sums);
}

Result<bool> CudaSkip::queue(const Kernels& kernels, std::size_t batch, CUstream stream) {
  CudaChangedCopy& copy = kernels.copy;
  CKPT_ASSERT(is_running_);
  CKPT_ASSERT(copied_[batch] == Copied::without_sums);
  const bool skips = may_skip_ && copy.is_usable();
  Status queued = copy.is_usable() || checks_all_
                      ? sums_->queue(kernels.fingerprint, now(batch), kernels.blocks, stream)
                      : fail(Errc::unsupported, "the kernel was refused before");
  if (queued && skips) queued = queue_changed(copy, batch, stream);
  if (queued) queued = sums_->queue_to_host(now(batch), skips, stream);
  if (queued) {
    copied_[batch] = skips ? Copied::by_kernel : Copied::by_engine;
    return skips;
  }
  // The engine copies all of it, over what the kernel may have copied; and no capture skips any
  // more, since these sums are not known.
  if (checks_all_) return fail(Error(queued.error()));
  if (copy.is_usable()) CKPT_CHECK(copy.give_up(queued.error()));
  return false;
}

Status CudaSkip::queue_changed(const CudaChangedCopy& copy, std::size_t batch,
                               CUstream stream) const {
  return copy.queue({sums_->launch_of(now(batch)), sums_->launch_of(before(batch)).sums,
                     slot_.data(), sums_->count_on_gpu(now(batch))},
                    stream);
}

Status CudaSkip::compare(std::size_t batch, CopyListener& listener) {
  CKPT_ASSERT(is_running_);
  if (copied_[batch] == Copied::by_kernel) CKPT_CHECK(compare_unchanged(batch, listener));
  if (copied_[batch] == Copied::without_sums || !checks_all_) return {};
  return compare_all(batch, listener);
}

// Both sums have 128 bits: no two contents have the same ones.
void CudaSkip::choose_unchanged(std::size_t batch) {
  for (std::size_t part = 0; part < sums_->part_count(batch); ++part) {
    const FingerprintSums is = sums_->on_gpu(now(batch), part);
    const FingerprintSums was = sums_->on_gpu(before(batch), part);
    is_chosen_[part] = is.low == was.low && is.high == was.high ? 1 : 0;
  }
}

Status CudaSkip::compare_unchanged(std::size_t batch, CopyListener& listener) {
  choose_unchanged(batch);
  const std::uint64_t unchanged = sums_->take_slot(batch, slot_, is_chosen_);
  const std::uint64_t copied = sums_->count(now(batch));
  // The kernel must have decided as we do, and copied all of the rest.
  if (unchanged + copied != batch_bytes_[batch])
    return fail(
        Errc::corruption,
        fmt::format("skip_unchanged: the GPU has copied {} bytes of a batch of {}, of which "
                    "{} are unchanged",
                    copied, batch_bytes_[batch], unchanged));
  const auto different = first_difference(*sums_, now(batch), is_chosen_, slot_.size());
  if (different)
    return fail(Errc::cancelled,
                fmt::format("skip_unchanged: {} was not copied, since it had not changed, but "
                            "something else has written into the Slot since; the next capture "
                            "copies all of it",
                            name_in_slot(*different, listener)));
  bytes_unchanged_ += unchanged;
  return {};
}

Status CudaSkip::compare_all(std::size_t batch, CopyListener& listener) {
  std::ranges::fill(is_chosen_, std::uint8_t{1});
  (void)sums_->take_slot(batch, slot_, is_chosen_);
  const auto different = first_difference(*sums_, now(batch), is_chosen_, slot_.size());
  return different ? fail(copy_differs(*different, listener)) : Status();
}

void CudaSkip::end(bool is_good) {
  CKPT_ASSERT(is_running_);
  is_running_ = false;
  if (is_good) {
    areas_.keep();
  } else {
    areas_.drop();
  }
}

}  // namespace ckpt::device
