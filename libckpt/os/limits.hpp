// Limits: the kernel's limits on this process, raised as far as allowed.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>

namespace ckpt::os {

enum class Limit : std::uint8_t { locked_memory, open_files };
inline constexpr std::uint64_t unlimited = UINT64_MAX;

struct LimitValues {
  std::uint64_t soft = 0;  // In force; bytes or descriptors.
  std::uint64_t hard = 0;  // The ceiling for an unprivileged process.
};

Result<LimitValues> limit_values(Limit limit);
// Raises the soft limit to the hard one, and returns the limits then in force.
Result<LimitValues> raise_limit(Limit limit);

}  // namespace ckpt::os
