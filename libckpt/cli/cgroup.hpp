// Cgroup: which supervisor (Slurm step, systemd unit, container) ends a process's control group.
#pragma once

#include <string>
#include <string_view>

namespace ckpt::cli {

struct Cgroup {
  std::string path;       // As the kernel writes it, in the hierarchy that says most.
  std::string dies_with;  // "step 0 of Slurm job 7"; empty: the machine alone.
  std::string advice;     // How to make it outlive that.
};

// `text` is the content of /proc/PID/cgroup, version 1 or 2. Inside a container its own groups may
// be hidden, so that the path is only "/".
Cgroup parse_cgroup(std::string_view text, bool is_in_container);

// Returns true if `pid` lives and dies with the first process of a container.
bool is_in_container(const std::string& pid);

}  // namespace ckpt::cli
