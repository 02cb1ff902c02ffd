// JobLife: the requests of a job's parts to the whole. The Job implements it.
//
// Threads: the engine's.
#pragma once

#include <memory>

#include "base/signal.hpp"
#include "base/stop_gate.hpp"

namespace ckpt::node {

class JobLife {
 public:
  virtual void touch() = 0;       // Something changed: the job looks at everything, soon.
  virtual Signal& changed() = 0;  // After each update.
  // For coroutines. The job and its parts exist as long as this is held.
  virtual std::shared_ptr<void> hold() = 0;
  // The same, and stop() waits until it is released.
  struct WorkPass {
    std::shared_ptr<void> job;
    StopGate::Pass pass;
  };
  virtual WorkPass begin_work() = 0;

 protected:
  ~JobLife() = default;
};

}  // namespace ckpt::node
