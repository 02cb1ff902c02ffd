// The kernel that gathers small tensors into a Slot. Each warp takes one part of one tensor at a
// time. cmake/kernel_ptx.sh makes cuda_gather.ptx of it, which is what libckpt contains.
#include "device/gather_lane.hpp"

extern "C" __global__ void ckpt_gather(const ckpt::device::GatherEntry* entries, unsigned count,
                                       unsigned parts, unsigned char* slot) {
  const unsigned lane = threadIdx.x % ckpt::device::gather_lanes;
  const unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) / ckpt::device::gather_lanes;
  const unsigned warps = gridDim.x * blockDim.x / ckpt::device::gather_lanes;
  for (unsigned item = warp; item < count * parts; item += warps)
    ckpt::device::gather_part(entries[item / parts], item % parts, slot, lane);
}
