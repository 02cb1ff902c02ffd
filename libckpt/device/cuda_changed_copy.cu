// The kernel that copies into a Slot what it does not hold already. A lane looks at one item at a
// time, and its warp copies those that have changed, one after the other. cmake/kernel_ptx.sh makes
// cuda_changed_copy.ptx of it, which is what libckpt contains.
#include "device/changed_copy_lane.hpp"

using ckpt::FingerprintSums;
using ckpt::device::FingerprintEntry;

// Adds to `copied` the bytes that it has copied.
extern "C" __global__ void ckpt_changed_copy(const FingerprintEntry* entries, unsigned count,
                                             const FingerprintEntry* fragments,
                                             unsigned fragment_count, std::uint64_t part_bytes,
                                             const FingerprintSums* now,
                                             const FingerprintSums* before, unsigned char* slot,
                                             unsigned long long* copied) {
  constexpr unsigned lanes = ckpt::device::fingerprint_lanes;
  constexpr unsigned items_each = ckpt::device::changed_copy_items;
  constexpr unsigned all_lanes = 0xffffffff;
  const ckpt::device::ChangedParts parts{part_bytes, now, before};
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned threads = gridDim.x * blockDim.x;
  const unsigned lane = thread % lanes;
  const unsigned items = count * items_each;
  unsigned long long bytes = 0;
  for (unsigned first = thread - lane; first < items; first += threads) {
    const unsigned own = first + lane;
    std::uint64_t own_bytes = 0;
    if (own < items) {
      const FingerprintEntry entry = entries[own / items_each];
      if (ckpt::device::has_changed(parts, entry))
        own_bytes = ckpt::device::bytes_of_item(entry, own % items_each);
    }
    bytes += own_bytes;
    for (unsigned left = __ballot_sync(all_lanes, own_bytes > 0); left != 0; left &= left - 1) {
      const unsigned item = first + __ffs(left) - 1;
      ckpt::device::copy_item(entries[item / items_each], item % items_each, slot, lane);
    }
  }
  for (unsigned index = thread; index < fragment_count; index += threads) {
    const FingerprintEntry fragment = fragments[index];
    if (!ckpt::device::has_changed(parts, fragment)) continue;
    ckpt::device::copy_fragment(fragment, slot);
    bytes += fragment.bytes;
  }
  for (unsigned apart = lanes / 2; apart > 0; apart /= 2)
    bytes += __shfl_down_sync(all_lanes, bytes, apart);
  if (lane == 0 && bytes > 0) atomicAdd(copied, bytes);
}
