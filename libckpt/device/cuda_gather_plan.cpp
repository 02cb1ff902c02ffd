#include "device/cuda_gather_plan.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"

namespace ckpt::device {

CudaBatches gather_small(CudaBatches plan, const GatherLimits& limits) {
  const auto is_small = [&](const CudaCopy& copy) { return copy.bytes < limits.bytes_below; };
  const auto small_count = static_cast<std::size_t>(std::ranges::count_if(plan.copies, is_small));
  if (small_count == 0 || small_count < limits.copies_min) return plan;
  const std::vector<CudaCopy> all = std::exchange(plan.copies, {});
  for (CudaBatch& batch : plan.batches) {
    const auto copies = std::span(all).subspan(batch.first_copy, batch.copy_count);
    batch.first_copy = plan.copies.size();
    batch.first_gathered = plan.gathered.size();
    for (const CudaCopy& copy : copies)
      (is_small(copy) ? plan.gathered : plan.copies).push_back(copy);
    batch.copy_count = plan.copies.size() - batch.first_copy;
    batch.gathered_count = plan.gathered.size() - batch.first_gathered;
  }
  CKPT_ASSERT(plan.copies.size() + plan.gathered.size() == all.size());
  return plan;
}

std::vector<GatherEntry> gather_table(const CudaBatches& plan) {
  std::vector<GatherEntry> table;
  table.reserve(plan.gathered.size());
  for (const CudaCopy& copy : plan.gathered)
    table.push_back({static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(copy.source)),
                     copy.slot_offset, copy.bytes});
  return table;
}

unsigned gather_parts(std::span<const CudaCopy> copies) {
  std::uint64_t longest = 0;
  for (const CudaCopy& copy : copies) longest = std::max(longest, copy.bytes);
  return static_cast<unsigned>(div_ceil(longest, gather_part_bytes));
}

}  // namespace ckpt::device
