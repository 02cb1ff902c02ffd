// CudaFingerprintPlan: what the fingerprint kernel reads of tensors that lie on a GPU. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "device/fingerprint_lane.hpp"

namespace ckpt::device {

struct FingerprintPlan {
  std::vector<FingerprintEntry> entries;    // Whole words.
  std::vector<FingerprintEntry> fragments;  // In the Slot's order.
};

// The pieces come in the Slot's order and do not overlap. Zeros and gaps between them add nothing:
// a word that has none of their bytes is not counted, and other bytes of a word are zeros in it.
// `chunk_bytes` is a multiple of 8.
FingerprintPlan plan_fingerprints(std::span<const CopyPiece> pieces, std::uint64_t chunk_bytes);

}  // namespace ckpt::device
