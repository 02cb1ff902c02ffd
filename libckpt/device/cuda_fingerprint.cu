// The kernel that computes fingerprints of Chunks of tensors where they lie. Each warp takes one
// entry at a time, and each lane a fragment. cmake/kernel_ptx.sh makes cuda_fingerprint.ptx of it,
// which is what libckpt contains.
#include "device/fingerprint_lane.hpp"

using ckpt::FingerprintSums;
using ckpt::device::FingerprintEntry;

namespace {

__device__ void add_to(FingerprintSums* chunk, const FingerprintSums& sums) {
  atomicAdd(reinterpret_cast<unsigned long long*>(&chunk->low), sums.low);
  atomicAdd(reinterpret_cast<unsigned long long*>(&chunk->high), sums.high);
}

}  // namespace

// Adds to `chunks`, which has one pair of sums for each Chunk of the Slot.
extern "C" __global__ void ckpt_fingerprint(const FingerprintEntry* entries, unsigned count,
                                            const FingerprintEntry* fragments,
                                            unsigned fragment_count, std::uint64_t chunk_bytes,
                                            FingerprintSums* chunks) {
  constexpr unsigned lanes = ckpt::device::fingerprint_lanes;
  constexpr unsigned all_lanes = 0xffffffff;
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned threads = gridDim.x * blockDim.x;
  for (unsigned item = thread / lanes; item < count; item += threads / lanes) {
    const FingerprintEntry entry = entries[item];
    FingerprintSums sums;
    ckpt::device::add_entry(entry, chunk_bytes, thread % lanes, sums);
    for (unsigned apart = lanes / 2; apart > 0; apart /= 2) {
      sums.low += __shfl_down_sync(all_lanes, sums.low, apart);
      sums.high += __shfl_down_sync(all_lanes, sums.high, apart);
    }
    if (thread % lanes == 0) add_to(chunks + entry.slot_offset / chunk_bytes, sums);
  }
  for (unsigned index = thread; index < fragment_count; index += threads) {
    FingerprintSums sums;
    if (ckpt::device::add_fragments(fragments, fragment_count, index, chunk_bytes, sums))
      add_to(chunks + fragments[index].slot_offset / chunk_bytes, sums);
  }
}
