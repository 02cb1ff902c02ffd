// CoreShare: keeps the daemon's threads off the cores that trainers are bound to.
//
// What the daemon may use is what it had when this was made. A trainer is bound when there are
// cores among these that it does not run on. Its first thread tells: whoever starts a rank binds it
// before it runs, so that its threads inherit it, while libraries bind threads of their own for
// other reasons, OpenMP each to another core, and would claim cores that nobody trains on.
//
// Threads:  the engine's.
#pragma once

#include <optional>
#include <vector>

#include "os/cores.hpp"

namespace ckpt::daemon {

// What is left of ours beside trainers on these cores; all of it where nothing would be left.
os::CoreSet cores_beside(const os::CoreSet& ours, const std::vector<os::CoreSet>& trainers);

class CoreShare {
 public:
  CoreShare();

  // To be told the processes of all trainers whenever one comes or goes. What fails is logged once,
  // and leaves the daemon where it ran.
  void settle(const std::vector<pid_t>& trainers);

 private:
  void complain(const Error& error);

  std::optional<os::CoreSet> ours_;  // None: it cannot be known, and is left as it is.
  os::CoreSet now_;                  // Where the threads run.
  bool is_failure_told_ = false;
};

}  // namespace ckpt::daemon
