// ThreadSettings: the name, the signals and the scheduling priority of the calling thread.
#pragma once

#include <signal.h>

#include <ckpt/result.hpp>
#include <string_view>

namespace ckpt::os {

// Cut to the 15 characters that the kernel keeps.
void set_thread_name(std::string_view name);

// SignalsBlocked: threads that start while it lives begin with all signals blocked, since a
// trainer's signals are for its own threads. A new thread inherits the mask of the one that starts
// it.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Gives the calling thread, and all threads it starts from now on, this nice value unless theirs is
// higher. A session leader lowers its session too: kernels that schedule by session (autogroup)
// compare nice values only within one. Errors: io; a refused change leaves everything as it was.
Status give_way(int nice);

}  // namespace ckpt::os
