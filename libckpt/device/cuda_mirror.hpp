// CudaMirror: memory of the GPU and as much pinned memory of the host, copied between the two in
// the order of a stream.
//
// Threads: one at a time. Lifetime: the driver outlives it; the context is current at its making
//          and at its end.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "device/cuda_driver.hpp"
#include "device/device.hpp"

namespace ckpt::device {

class CudaMirror {
 public:
  // `what` is for errors: "a table of small tensors". Errors: io, unavailable.
  static Result<std::unique_ptr<CudaMirror>> make(const CudaDriver& driver, std::size_t bytes,
                                                  std::string_view what);
  // Waits for the GPU, as the driver does.
  ~CudaMirror();
  CudaMirror(const CudaMirror&) = delete;
  CudaMirror& operator=(const CudaMirror&) = delete;

  std::span<std::byte> on_host() const { return {static_cast<std::byte*>(on_host_), bytes_}; }
  CUdeviceptr on_gpu() const { return on_gpu_; }
  // Queues a copy of all of it, or of a part. Errors: as CudaDriver::check.
  Status to_gpu(CUstream stream) const;
  Status to_host(CUstream stream, const Stretch& part) const;
  // The context is gone, and its memory with it.
  void forget();

 private:
  CudaMirror(const CudaDriver& driver, std::size_t bytes) : driver_(driver), bytes_(bytes) {}

  const CudaDriver& driver_;
  const std::size_t bytes_;
  void* on_host_ = nullptr;
  CUdeviceptr on_gpu_ = 0;
};

}  // namespace ckpt::device
