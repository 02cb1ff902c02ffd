#include "node/yield_control.hpp"

#include <algorithm>

namespace ckpt::node {

void YieldControl::add(const StepSample& sample) {
  for (const BackgroundWork work : all_work) {
    StepPace& pace = paces_[index(work)][sample.rank];
    const WorkBeside& beside = sample.beside[index(work)];
    if (sample.is_alone) pace.measured_alone(sample.step);
    if (sample.is_alone || beside.share < share_min) continue;
    pace.measured_beside(sample.step, beside.bytes_per_second);
    judge(work);
  }
}

void YieldControl::forget(std::uint32_t rank) {
  for (Paces& paces : paces_) paces.erase(rank);
}

void YieldControl::judge(BackgroundWork work) {
  Paces& paces = paces_[index(work)];
  const StepPace* slowest = nullptr;
  bool are_all_judged = true;
  for (const auto& [rank, pace] : paces) {
    // Not seen beside the work: it has no steps alone yet, for example.
    if (pace.is_empty()) continue;
    if (slowest == nullptr || pace.ratio() > slowest->ratio()) slowest = &pace;
    are_all_judged = are_all_judged && pace.effect() != StepPace::Effect::unknown;
  }
  const auto is_slowed = [](const auto& entry) {
    return entry.second.effect() == StepPace::Effect::slower;
  };
  const auto slowed = std::ranges::find_if(paces, is_slowed);
  if (slowest == nullptr || (slowed == paces.end() && !are_all_judged)) return;
  ratios_[index(work)] = slowest->ratio();
  RateLimit& limit = limits_[index(work)];
  if (slowed != paces.end())
    limit.disturbed(slowed->second.bytes_per_second());
  else
    limit.undisturbed();
  for (auto& [rank, pace] : paces) pace.begin_again();
}

}  // namespace ckpt::node
