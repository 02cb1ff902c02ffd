// CudaMirror: memory of the GPU and as much pinned memory of the host, copied between the two in
// the order of a stream. CudaMirrors: those that are used again, since to free one waits for all
// that is queued on the GPU.
//
// Threads: one at a time. Lifetime: the driver outlives it; the context is current at its making
//          and at its end.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

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
  Status to_gpu(CUstream stream) const { return to_gpu(stream, {0, bytes_}); }
  Status to_gpu(CUstream stream, const Stretch& part) const;
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

class CudaMirrors {
 public:
  explicit CudaMirrors(const CudaDriver& driver) : driver_(driver) {}

  // One of so many bytes or more; what it holds is from before. Errors: as CudaMirror::make.
  Result<std::unique_ptr<CudaMirror>> take(std::size_t bytes, std::string_view what);
  // Nothing that is queued uses it any more.
  void give_back(std::unique_ptr<CudaMirror> mirror);
  // With the context current, if it is there still.
  void close(bool has_context);

 private:
  static constexpr std::size_t spares_max = 10;  // Two plans, with a check and hashes each.

  const CudaDriver& driver_;
  std::vector<std::unique_ptr<CudaMirror>> spares_;  // The largest first.
};

}  // namespace ckpt::device
