#include "arena/arena_limits.hpp"

#include <fmt/format.h>

#include <array>

#include "base/assert.hpp"

namespace ckpt::arena {

std::string human_bytes(std::uint64_t bytes) {
  static constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < units.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

Status MemoryBudget::check(std::uint64_t bytes, const std::string& what, std::uint64_t given_back,
                           const std::string& used_by) const {
  CKPT_ASSERT(given_back <= used_bytes_);
  const std::uint64_t used = used_bytes_ - given_back;
  if (bytes > limit_bytes_ || used > limit_bytes_ - bytes) {
    return fail(
        Errc::exhausted,
        fmt::format(
            "{} need{} {}, may use {}, of which {} are taken{}; raise memory_budget (of the "
            "daemon, at its start: `ckpt stop` ends one that runs) or lower own_slots or "
            "replicas",
            what, what.starts_with("a Slot") ? "s" : "", human_bytes(bytes),
            human_bytes(limit_bytes_), human_bytes(used),
            used == 0 || used_by.empty() ? "" : " (" + used_by + ")"));
  }
  return {};
}

Status MemoryBudget::reserve(std::uint64_t bytes, const std::string& what,
                             const std::string& used_by) {
  CKPT_CHECK(check(bytes, what, 0, used_by));
  used_bytes_ += bytes;
  return {};
}

void MemoryBudget::release(std::uint64_t bytes) {
  CKPT_ASSERT(bytes <= used_bytes_);
  used_bytes_ -= bytes;
}

}  // namespace ckpt::arena
