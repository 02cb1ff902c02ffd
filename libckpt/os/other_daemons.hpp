// OtherDaemons: this user's daemons on this machine in other runtime directories than ours.
//
// Daemons of two directories know nothing of each other, and a trainer finds only one of them.
// Those of another container are not seen.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace ckpt::os {

struct OtherDaemon {
  pid_t pid = 0;
  std::string runtime_dir;  // By its flag or its environment. Empty: neither names one.
  bool operator==(const OtherDaemon&) const = default;
};

// `proc` is for tests. By number.
std::vector<OtherDaemon> other_daemons(const std::string& runtime_dir,
                                       const std::string& proc = "/proc");

}  // namespace ckpt::os
