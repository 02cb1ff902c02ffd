// Cgroup: with what a daemon dies: the control group of a process, and who ends all that is in it.
#pragma once

#include <string>
#include <string_view>

namespace ckpt::cli {

struct Cgroup {
  std::string path;       // Of the most telling hierarchy, as the kernel writes it.
  std::string dies_with;  // "step 0 of Slurm job 7"; empty: with the machine alone.
  std::string advice;     // How it would outlive that.
};

// `text` is that of /proc/PID/cgroup, of version 1 or 2. A container's own groups may be hidden
// from those in it, so that its path is only "/".
Cgroup parse_cgroup(std::string_view text, bool is_in_container);

// Whether `pid` lives and dies with the first process of a container.
bool is_in_container(const std::string& pid);

}  // namespace ckpt::cli
