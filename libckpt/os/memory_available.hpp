// MemoryAvailable: the memory that this process may still use, by machine and by cgroup.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <string>

namespace ckpt::os {

struct MemoryAvailable {
  std::uint64_t bytes = 0;          // The smaller of the two.
  std::uint64_t machine_bytes = 0;  // MemAvailable of /proc/meminfo.
  std::uint64_t machine_bytes_total = 0;
  // The room left in the tightest cgroup above us, not counting reclaimable file cache; max:
  // unlimited.
  std::uint64_t cgroup_bytes = UINT64_MAX;
};

// `root` is prepended to /proc and /sys; tests pass a tree of their own. Errors: unsupported.
Result<MemoryAvailable> memory_available(const std::string& root = "");

}  // namespace ckpt::os
