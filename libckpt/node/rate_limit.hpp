// RateLimit: how fast one kind of work may go, found by trying.
//
// Without a limit until the work is seen to slow training down. From then on it goes down by a
// factor each time that happens again, and up by a part of the work's full speed when it does not,
// until there is no limit any more. It never goes below a minimum: the work always ends.
//
// Pure. Threads: one.
#pragma once

#include <cstdint>

#include "base/units.hpp"

namespace ckpt::node {

class RateLimit {
 public:
  static constexpr double decrease = 0.7;
  static constexpr double increase = 1.0 / 16;  // A share of the full speed.
  static constexpr std::uint64_t lowest = 64 * MiB;

  // Bytes per second. 0: no limit.
  std::uint64_t value() const { return value_; }
  // Below which it never goes.
  std::uint64_t minimum() const { return minimum_; }
  void set_minimum(std::uint64_t bytes_per_second);

  // Training was slower while the work went at `bytes_per_second`; or it was not.
  void disturbed(std::uint64_t bytes_per_second);
  void undisturbed();

 private:
  std::uint64_t value_ = 0;
  std::uint64_t minimum_ = lowest;
  std::uint64_t full_speed_ = 0;  // When it last had no limit and got one.
};

}  // namespace ckpt::node
