#include "device/cuda_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"

namespace ckpt::device {

Result<std::unique_ptr<CudaCheck>> CudaCheck::make(const CudaDriver& driver, CudaMirrors& mirrors,
                                                   const CudaBatches& plan) {
  CKPT_TRY(auto sums, CudaBatchSums::make(driver, mirrors, plan, 1));
  std::size_t parts_max = 0;
  for (std::size_t batch = 0; batch < plan.batches.size(); ++batch)
    parts_max = std::max(parts_max, sums->part_count(batch));
  std::unique_ptr<CudaCheck> check(new CudaCheck(std::move(sums)));
  check->all_parts_.assign(parts_max, 1);
  return check;
}

Status CudaCheck::queue(const CudaFingerprint& kernel, std::size_t batch, CUstream stream) {
  CKPT_CHECK(sums_->queue(kernel, {batch, 0}, CudaFingerprint::blocks_beside_training, stream));
  return sums_->queue_to_host({batch, 0}, false, stream);
}

Status CudaCheck::compare(std::size_t batch, std::span<const std::byte> slot,
                          CopyListener& listener) {
  (void)sums_->take_slot(batch, slot, all_parts_);
  const auto different = first_difference(*sums_, {batch, 0}, all_parts_, slot.size());
  return different ? fail(copy_differs(*different, listener)) : Status();
}

Error copy_differs(const Stretch& in_slot, CopyListener& listener) {
  return Error(Errc::corruption,
               fmt::format("gpu_check: the copy of {} is not what the GPU read before it: a fault "
                           "of the link or of memory, or a tensor that was changed before guard()",
                           name_in_slot(in_slot, listener)));
}

std::optional<Stretch> first_difference(const CudaBatchSums& sums,
                                        const CudaBatchSums::Place& place,
                                        std::span<const std::uint8_t> is_chosen,
                                        std::uint64_t slot_bytes) {
  CKPT_ASSERT(is_chosen.size() >= sums.part_count(place.batch));
  for (std::size_t part = 0; part < sums.part_count(place.batch); ++part) {
    if (is_chosen[part] == 0) continue;
    if (FingerprintSum(sums.on_gpu(place, part)).finish(0) == sums.in_slot(part).finish(0))
      continue;
    return sums.part_in_slot(place.batch, part, slot_bytes);
  }
  return std::nullopt;
}

std::string name_in_slot(const Stretch& in_slot, CopyListener& listener) {
  std::string name = listener.name_of(in_slot);
  if (!name.empty()) return name;
  return fmt::format("bytes from {} to {} of the Slot", in_slot.offset,
                     in_slot.offset + in_slot.bytes);
}

}  // namespace ckpt::device
