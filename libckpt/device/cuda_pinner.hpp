// CudaPinner: registers host memory with the driver, for all GPUs of the process.
//
// Threads: one at a time. Lifetime: the driver and the context outlive it.
#pragma once

#include "device/cuda_context_identity.hpp"
#include "device/memory_pins.hpp"

namespace ckpt::device {

class CudaPinner final : public Pinner {
 public:
  // Pins in pieces of `piece_bytes`.
  CudaPinner(const CudaDriver& driver, CUcontext context, std::uint64_t piece_bytes)
      : driver_(driver), context_(context), identity_(driver, context), piece_bytes_(piece_bytes) {}

  Status pin(std::span<std::byte> memory) override;
  bool unpin(std::span<std::byte> memory) override;

 private:
  bool unpin_piece(std::byte* first);

  const CudaDriver& driver_;
  const CUcontext context_;
  const ContextIdentity identity_;
  const std::uint64_t piece_bytes_;
};

}  // namespace ckpt::device
