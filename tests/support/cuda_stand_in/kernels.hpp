// Kernels: what the stand-in runs in place of libckpt's kernels for GPUs, by their names.
//
// Their lanes run one after the other, by the same source as on a GPU.
//
// Threads: as World.
#pragma once

#include <string_view>

#include "support/cuda_stand_in/world.hpp"

namespace ckpt::test {

// Whether a driver would take it: PTX, as text, of a version and a target that it knows.
CUresult check_module(const World& world, const void* image);
bool has_kernel(std::string_view name);

struct Launch {
  unsigned blocks = 0;
  unsigned threads = 0;
  void** arguments = nullptr;
};
// Queues it. As on a GPU, an address that it may not use destroys the context when it runs.
CUresult launch_kernel(World& world, StreamQueue& stream, std::string_view name,
                       const Launch& launch);

}  // namespace ckpt::test
