// CudaPinner: registers host memory with the driver, for all GPUs of the process.
//
// Threads: one at a time. Lifetime: the driver and the context outlive it.
#pragma once

#include "device/cuda_driver.hpp"
#include "device/memory_pins.hpp"

namespace ckpt::device {

class CudaPinner final : public Pinner {
 public:
  CudaPinner(const CudaDriver& driver, CUcontext context) : driver_(driver), context_(context) {}

  // In pieces of pin_piece_bytes.
  Status pin(std::span<std::byte> memory) override;
  void unpin(std::span<std::byte> memory) override;

 private:
  const CudaDriver& driver_;
  const CUcontext context_;
};

}  // namespace ckpt::device
