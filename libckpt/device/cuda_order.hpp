// CudaOrder: orders our copies after the work a trainer has queued, and its next work after them.
//
// Both orders use events, so that the GPU waits and the host does not. An event belongs to the
// context of the stream it is recorded on. Events of contexts that are not ours are not kept: such
// a context may be destroyed before we are.
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

  // Returns true if work queued on `stream` now would be recorded into a CUDA graph instead of run.
  Result<bool> is_captured(Stream stream) const;
  // Makes `ours` continue after everything queued on `stream`, and on our GPU's default stream if
  // that is another one. Errors: those of CudaDriver::check.
  Status follow(CUstream ours, Stream stream);
  // Makes their future work run after `event`, which must be recorded.
  Status precede(CUevent event, Stream stream);

  // Call it before destruction. Without the context, its event is already gone.
  void close(bool has_context);

 private:
  struct Queue {
    CUstream stream = nullptr;
    CUcontext context = nullptr;
  };
  // Returns the stream, plus our GPU's default stream if the stream is of another GPU.
  Result<std::vector<Queue>> queues_of(Stream stream) const;
  Status follow_one(CUstream ours, const Queue& queue);

  const CudaDriver& driver_;
  const CUcontext context_;
  CUevent event_ = nullptr;  // Belongs to our context.
};

}  // namespace ckpt::device
