// StepPace: whether the steps of one rank last longer while something is done beside them.
//
// They are compared with the median of those measured while nothing was done. Medians, since single
// steps are long for reasons of their own: the first ones, an evaluation, a page of the log. Steps
// during which a capture ran are compared with their like. A difference counts only when it is
// clearly more than the times vary by themselves.
//
// Pure. Threads: one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/clock.hpp"

namespace ckpt::node {

// One step, or the mean of several in a row.
struct MeasuredStep {
  Time at{};  // When it had ended.
  double seconds = 0;
  bool during_capture = false;
};

class StepPace {
 public:
  // How much longer a step may last before a training run notices it.
  static constexpr double tolerance = 0.02;
  // How many of the newest times alone are kept, and how many it takes to compare with them. Times
  // older than `age_max` say nothing of today's steps.
  static constexpr std::size_t alone_max = 32, alone_min = 8;
  static constexpr Duration age_max = std::chrono::minutes(10);
  // After so many steps beside the work it is judged: soon, when they are slower.
  static constexpr std::size_t slower_after = 4, same_after = 8, undecided_after = 32;

  // Slower: more than is tolerated, and than chance could explain. None: neither, or the times vary
  // so much by themselves that no measurement could show it.
  enum class Effect : std::uint8_t { unknown, none, slower };

  void measured_alone(const MeasuredStep& step);
  void measured_beside(const MeasuredStep& step, std::uint64_t bytes_per_second);
  // From the steps since begin_again() without the first, in which the change took hold.
  Effect effect() const;
  double ratio() const;  // Steps beside the work to those alone; 1 while there are none.
  std::uint64_t bytes_per_second() const;  // Moved beside those steps, on average.
  void begin_again();

  bool is_empty() const { return ratios_.empty(); }  // No step since begin_again().
  bool has_baseline(const MeasuredStep& like) const;

 private:
  const std::deque<MeasuredStep>& alone(const MeasuredStep& like) const {
    return alone_[like.during_capture ? 1 : 0];
  }

  std::array<std::deque<MeasuredStep>, 2> alone_;  // The second: during a capture.
  std::vector<double> ratios_;
  double deviation_ = 0;         // The largest of single times, by their median.
  std::size_t alone_count_ = 0;  // The fewest that one of `ratios_` was compared with.
  double bytes_per_second_sum_ = 0;
  bool is_first_ = true;
};

}  // namespace ckpt::node
