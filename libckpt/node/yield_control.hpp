// YieldControl: from the measured steps of a node's ranks to the limits of what is done beside
// them.
//
// Flushes and copies have a limit each, which follows the steps beside which that work was under
// way. A limit goes down when one rank is slowed, since the others wait for it, and up only when
// none is.
//
// Pure. Threads: one.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "node/rate_limit.hpp"
#include "node/step_pace.hpp"

namespace ckpt::node {

enum class BackgroundWork : std::uint8_t { flush, copies };
inline constexpr std::array all_work = {BackgroundWork::flush, BackgroundWork::copies};

struct WorkBeside {
  double share = 0;  // The part of the step's time during which it was under way.
  std::uint64_t bytes_per_second = 0;
};

struct StepSample {
  std::uint32_t rank = 0;
  MeasuredStep step;
  bool is_alone = false;  // Nothing at all was done beside it.
  std::array<WorkBeside, all_work.size()> beside;
};

class YieldControl {
 public:
  // Below this share of a step, the cost of the work cannot be measured.
  static constexpr double share_min = 0.5;

  void add(const StepSample& sample);
  // Another process, which may be faster or slower, or none.
  void forget(std::uint32_t rank);

  const RateLimit& limit(BackgroundWork work) const { return limits_[index(work)]; }
  void set_minimum(BackgroundWork work, std::uint64_t bytes_per_second) {
    limits_[index(work)].set_minimum(bytes_per_second);
  }
  // How many times longer the steps beside it were than those alone, when that was last judged.
  std::optional<double> step_ratio(BackgroundWork work) const { return ratios_[index(work)]; }

 private:
  using Paces = std::map<std::uint32_t, StepPace>;  // By rank.

  static std::size_t index(BackgroundWork work) { return static_cast<std::size_t>(work); }
  void judge(BackgroundWork work);

  std::array<Paces, all_work.size()> paces_;
  std::array<RateLimit, all_work.size()> limits_;
  std::array<std::optional<double>, all_work.size()> ratios_;
};

}  // namespace ckpt::node
