// GpuTrainer: a context, a stream and tensors on a GPU, by nothing but the driver's functions.
//
// So it needs no compiler for GPUs, and runs on the stand-in driver as well.
//
// Threads: one. Lifetime: outlives what captures its tensors.
#pragma once

#include <ckpt/tensor.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda_driver.hpp"
#include "os/dynamic_library.hpp"

namespace ckpt::test {

class GpuTrainer {
 public:
  // Errors: unsupported (no GPU; says which), io.
  static Result<std::unique_ptr<GpuTrainer>> open();
  ~GpuTrainer();
  GpuTrainer(const GpuTrainer&) = delete;
  GpuTrainer& operator=(const GpuTrainer&) = delete;

  // As the driver's functions take it.
  static CUdeviceptr on_gpu(const std::byte* address) {
    return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(address));
  }

  Stream stream() const { return {stream_}; }
  const device::CudaDriver& driver() const { return *driver_; }
  CUcontext context() const { return context_; }
  std::string name() const;  // Of the GPU.
  // A function that libckpt itself does not call, in that version; null: the driver has none.
  template <class Function>
  Function find(const char* name, int version) const {
    return reinterpret_cast<Function>(address_of(name, version));
  }

  std::byte* allocate(std::size_t bytes);
  void free(std::byte* memory);  // Waits for the GPU, as the driver does.
  // In the order of the stream; returns before it has happened.
  void fill(std::byte* target, std::uint32_t word, std::size_t words);
  void write(std::byte* target, std::vector<std::byte> bytes);
  // After all that is queued.
  std::vector<std::byte> read(const std::byte* source, std::size_t bytes);
  void synchronize();
  // Until the stream is empty, without leaving the core: for timings.
  void spin() { spin(stream_); }
  void spin(CUstream stream);
  std::size_t bytes_used() const;
  std::size_t bytes_free() const;

 private:
  explicit GpuTrainer(std::unique_ptr<device::CudaDriver> driver) : driver_(std::move(driver)) {}
  Status start();
  void* address_of(const char* name, int version) const;

  std::unique_ptr<device::CudaDriver> driver_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  std::vector<CUdeviceptr> memory_;
  std::deque<std::vector<std::byte>> in_flight_;  // Queued writes still read from these.
};

}  // namespace ckpt::test
