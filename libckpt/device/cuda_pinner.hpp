// CudaPinner: registers host memory with the driver, for all GPUs of the process.
//
// Threads: one at a time. Lifetime: the driver and the context outlive it.
#pragma once

#include "device/cuda_context_identity.hpp"
#include "device/memory_pins.hpp"

namespace ckpt::device {

class CudaPinner final : public Pinner {
 public:
  CudaPinner(const CudaDriver& driver, CUcontext context)
      : driver_(driver), context_(context), identity_(driver, context) {}

  // Pins in pieces of pin_piece_bytes.
  Status pin(std::span<std::byte> memory) override;
  bool unpin(std::span<std::byte> memory) override;

 private:
  bool unpin_piece(std::byte* first);

  const CudaDriver& driver_;
  const CUcontext context_;
  const ContextIdentity identity_;
};

}  // namespace ckpt::device
