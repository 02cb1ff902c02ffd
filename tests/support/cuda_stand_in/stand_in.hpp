// StandIn: the stand-in driver as a test uses it: opened, set anew, and worked with as a trainer.
//
// Threads: one. Lifetime: one at a time; everything that uses the driver is gone before the next.
#pragma once

#include <cuda.h>

#include <ckpt/tensor.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/cuda_driver.hpp"
#include "support/cuda_stand_in/control.hpp"

namespace ckpt::test {

// The library itself, and CKPT_CUDA_DRIVER set so that libckpt finds it, too.
const StandInControl& stand_in();

// StandInTrainer: a context, a stream and tensors on one GPU, as a framework has them.
class StandInTrainer {
 public:
  // `words` as in StandInControl::reset.
  explicit StandInTrainer(const std::string& words, int device = 0);
  ~StandInTrainer();
  StandInTrainer(const StandInTrainer&) = delete;
  StandInTrainer& operator=(const StandInTrainer&) = delete;

  Stream stream() const { return {stream_}; }
  CUcontext context() const { return context_; }
  const device::CudaDriver& driver() const { return *driver_; }

  std::byte* allocate(std::size_t bytes);
  // On another GPU of the process.
  std::byte* allocate_on(int device, std::size_t bytes);
  // A kernel: in the order of the stream, it writes `bytes` to `target`.
  void write(std::byte* target, std::vector<std::byte> bytes);
  // After all that is queued.
  std::vector<std::byte> read(const std::byte* source, std::size_t bytes);
  void synchronize() const;
  // The work at the front of its stream goes on until it is let go.
  void hold(bool is_held) const { stand_in().hold(stream_, is_held); }
  void* find(const char* name, int version) const { return stand_in().find(name, version); }

 private:
  struct Write;
  static void run_write(void* argument);

  std::unique_ptr<device::CudaDriver> driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  std::vector<CUdeviceptr> memory_;
  std::vector<CUdevice> others_;  // Retained, once for each allocation.
  std::vector<std::unique_ptr<Write>> writes_;
};

}  // namespace ckpt::test
