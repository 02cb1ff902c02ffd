// GpuHere: the trainer of a test on whatever GPU is here, and how long such a test waits.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <utility>

#include "gpu/gpu_trainer.hpp"

namespace ckpt::test {

inline constexpr std::chrono::seconds gpu_patience{60};  // Only a hang reaches it.

// The word is what ctest knows a skipped test by.
inline std::unique_ptr<GpuTrainer> open_trainer() {
  auto trainer = GpuTrainer::open();
  if (!trainer) FAIL("no_GPU_here: " << trainer.error().message());
  return std::move(*trainer);
}

}  // namespace ckpt::test
