// CoreShare: keeps the daemon's threads off the cores that trainers are bound to.
//
// The daemon may use the cores that it had when this was made. A trainer counts as bound when it
// does not run on some of them. Only its first thread counts: a launcher binds a rank before it
// runs, and its threads inherit that. Libraries bind their own threads for other reasons (OpenMP
// each to another core), and these would claim cores on which nobody trains.
//
// Threads:  the engine's.
#pragma once

#include <optional>
#include <vector>

#include "os/cores.hpp"

namespace ckpt::daemon {

// Our cores without those of the trainers; all of ours if nothing would be left.
os::CoreSet cores_beside(const os::CoreSet& ours, const std::vector<os::CoreSet>& trainers);

class CoreShare {
 public:
  CoreShare();

  // Call it with the processes of all trainers whenever one comes or goes. A failure is logged
  // once, and leaves the daemon where it ran.
  void settle(const std::vector<pid_t>& trainers);

 private:
  void complain(const Error& error);

  std::optional<os::CoreSet> ours_;  // None: unknown, and left as it is.
  os::CoreSet now_;                  // Where the threads run.
  bool has_complained_ = false;
};

}  // namespace ckpt::daemon
