// CudaOrder: puts our copies after what a trainer has queued, and what it queues next after them.
//
// Both are events, so that the GPU waits and the host does not. An event belongs to the context of
// the stream that it is recorded on. One of a context that is not ours is not kept: its context may
// go before we do.
//
// Threads: one at a time. Lifetime: the driver and the context outlive it.
#pragma once

#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <vector>

#include "base/assert.hpp"
#include "device/cuda_driver.hpp"

namespace ckpt::device {

class CudaOrder {
 public:
  CudaOrder(const CudaDriver& driver, CUcontext context) : driver_(driver), context_(context) {}
  ~CudaOrder() { CKPT_ASSERT(event_ == nullptr); }
  CudaOrder(const CudaOrder&) = delete;
  CudaOrder& operator=(const CudaOrder&) = delete;

  // Whether what is queued on `stream` now would go into a CUDA graph instead of being run.
  Result<bool> is_captured(Stream stream) const;
  // `ours` goes on when all that is queued on `stream`, and on the default stream of our GPU where
  // that is another, has run. Errors: those of CudaDriver::check.
  Status follow(CUstream ours, Stream stream);
  // What is queued on them from now on runs after `event`, which was recorded.
  Status precede(CUevent event, Stream stream);

  // Before the order goes; without the context, its event went with that.
  void close(bool has_context);

 private:
  struct Queue {
    CUstream stream = nullptr;
    CUcontext context = nullptr;
  };
  // The stream, and our GPU's default stream beside one of another GPU.
  Result<std::vector<Queue>> queues_of(Stream stream) const;
  Status follow_one(CUstream ours, const Queue& queue);

  const CudaDriver& driver_;
  const CUcontext context_;
  CUevent event_ = nullptr;  // Of our context.
};

}  // namespace ckpt::device
