// GapProbe: which gap between batches lets a trainer's own copies through best, measured on the
// GPU.
//
// Some batches are copied with each gap in between, while kernels of another stream keep the GPU
// busy and small copies of a third one are timed. It takes about 50 ms and 40 MiB of the GPU, both
// of which are given back.
//
// Threads: one, with the GPU's context current.
#pragma once

#include <ckpt/options.hpp>
#include <string>

#include "device/cuda_queue.hpp"

namespace ckpt::device {

// From the file `cache`, else measured and then kept there; empty: no file. It never fails: what
// cannot be measured is a memset. `queue` is open, and nothing runs on it.
GpuGap find_gap(CudaQueue& queue, CUdevice device, const std::string& cache);

}  // namespace ckpt::device
