#include "node/step_pace.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/assert.hpp"

namespace ckpt::node {

namespace {

// Both are for a normal distribution. The first turns the median distance from the median into the
// standard deviation. The second, divided by the root of n, turns that into the one of the median
// of n values.
constexpr double deviation_per_median_distance = 1.4826;
constexpr double median_deviation = 1.2533;
// Standard deviations that two medians must lie apart: one comparison in two thousand errs.
constexpr double certainty = 3.5;

double median(std::vector<double> values) {
  CKPT_ASSERT(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void StepPace::measured_alone(const MeasuredStep& step) {
  if (step.seconds <= 0) return;
  auto& kept = alone_[step.during_capture ? 1 : 0];
  kept.push_back(step);
  if (kept.size() > alone_max) kept.pop_front();
}

bool StepPace::has_baseline(const MeasuredStep& like) const {
  const auto is_recent = [&](const MeasuredStep& step) { return like.at - step.at <= age_max; };
  const auto& kept = alone(like);
  return static_cast<std::size_t>(std::count_if(kept.begin(), kept.end(), is_recent)) >= alone_min;
}

void StepPace::measured_beside(const MeasuredStep& step, std::uint64_t bytes_per_second) {
  if (step.seconds <= 0 || !has_baseline(step)) return;
  if (std::exchange(is_first_, false)) return;
  std::vector<double> times;
  for (const MeasuredStep& one : alone(step))
    if (step.at - one.at <= age_max) times.push_back(one.seconds);
  const double usual = median(times);
  const std::size_t count = times.size();
  for (double& time : times) time = std::abs(time - usual);
  const double deviation = deviation_per_median_distance * median(std::move(times)) / usual;
  deviation_ = ratios_.empty() ? deviation : std::max(deviation_, deviation);
  alone_count_ = ratios_.empty() ? count : std::min(alone_count_, count);
  ratios_.push_back(step.seconds / usual);
  bytes_per_second_sum_ += static_cast<double>(bytes_per_second);
}

double StepPace::ratio() const {
  return ratios_.empty() ? 1 : median(ratios_);
}

std::uint64_t StepPace::bytes_per_second() const {
  if (ratios_.empty()) return 0;
  return static_cast<std::uint64_t>(bytes_per_second_sum_ / static_cast<double>(ratios_.size()));
}

StepPace::Effect StepPace::effect() const {
  if (ratios_.size() < slower_after) return Effect::unknown;
  const double slower_by = ratio() - 1;
  if (slower_by <= tolerance) return ratios_.size() >= same_after ? Effect::none : Effect::unknown;
  const double counts =
      1.0 / static_cast<double>(ratios_.size()) + 1.0 / static_cast<double>(alone_count_);
  const double uncertain_by = certainty * median_deviation * deviation_ * std::sqrt(counts);
  if (slower_by > uncertain_by) return Effect::slower;
  return ratios_.size() < undecided_after ? Effect::unknown : Effect::none;
}

void StepPace::begin_again() {
  ratios_.clear();
  bytes_per_second_sum_ = 0;
  is_first_ = true;
}

}  // namespace ckpt::node
