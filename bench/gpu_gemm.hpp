// GpuGemm: a trainer's computation on a GPU: matrix products if the driver accepts them, else work
// of its memory.
//
// Threads: one. Lifetime: the trainer outlives it.
#pragma once

#include <chrono>
#include <string>

#include "gpu/gpu_trainer.hpp"

namespace bench {

class GpuGemm {
 public:
  explicit GpuGemm(ckpt::test::GpuTrainer& trainer);
  GpuGemm(const GpuGemm&) = delete;
  GpuGemm& operator=(const GpuGemm&) = delete;

  // Queues `times` products on the trainer's stream.
  void compute(int times);
  // A description for readers of the figures.
  const std::string& kind() const { return kind_; }
  double milliseconds();  // One product takes so long, measured.
  // Queues a kernel on `stream` that stays for so long on some of the GPU's cores; where the driver
  // accepts no kernels, work of its memory.
  void stay(CUstream stream, std::chrono::milliseconds time);

 private:
  ckpt::Status load();

  ckpt::test::GpuTrainer& trainer_;
  std::string kind_;
  PFN_cuLaunchKernel_v4000 launch_ = nullptr;
  CUfunction function_ = nullptr;  // Null: work of the memory instead.
  CUfunction stay_ = nullptr;
  double fill_ms_ = 1;
  std::byte* left_ = nullptr;
  std::byte* right_ = nullptr;
  std::byte* out_ = nullptr;
};

}  // namespace bench
