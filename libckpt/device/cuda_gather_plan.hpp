// CudaGatherPlan: which copies of a plan the gather kernel makes instead of the copy engine. Pure.
//
// Each copy costs the driver some microseconds, and the engine as well; a kernel copies a thousand
// tensors in one launch. Large copies stay with the engine, which takes no cores from training.
#pragma once

#include "device/cuda_batches.hpp"
#include "device/gather_lane.hpp"

namespace ckpt::device {

struct GatherLimits {
  std::uint64_t bytes_below = 0;  // Only smaller copies; 0: none.
  std::size_t copies_min = 1;     // The plan has as many of them, or none goes by kernel.
};

// Moves small copies of each batch from `copies` to `gathered`; both stay in the batches' order.
CudaBatches gather_small(CudaBatches plan, const GatherLimits& limits);

// The table for the kernel: an entry for each gathered copy, in their order.
std::vector<GatherEntry> gather_table(const CudaBatches& plan);

// How many parts the longest of these copies has.
unsigned gather_parts(std::span<const CudaCopy> copies);

}  // namespace ckpt::device
