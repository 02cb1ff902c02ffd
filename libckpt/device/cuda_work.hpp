// CudaWork: something that `ckpt-gpu` watches while it is under way on a GPU's copy stream.
//
// Threads: `ckpt-gpu`, with the lock of the CudaQueue.
#pragma once

#include <mutex>

namespace ckpt::device {

class CudaWork {
 public:
  // May release the lock meanwhile. True: there was progress.
  virtual bool advance(std::unique_lock<std::mutex>& lock) = 0;
  // Whether a part of it has ended: what the trainer had queued before it has, then.
  virtual bool has_arrived() const = 0;

 protected:
  ~CudaWork() = default;
};

}  // namespace ckpt::device
