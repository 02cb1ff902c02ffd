#include "node/giving_way.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ckpt::node {

namespace {

std::uint64_t rate_for(std::uint64_t bytes, Duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return static_cast<std::uint64_t>(static_cast<double>(bytes) / seconds);
}

// Where 0 is no limit.
std::uint64_t lower(std::uint64_t one, std::uint64_t other) {
  if (one == 0 || other == 0) return std::max(one, other);
  return std::min(one, other);
}

}  // namespace

GivingWay::GivingWay(Clock& clock, std::string job) : clock_(clock), job_(std::move(job)) {
  for (WorkLimit& limit : limits_) limit.throttle = std::make_shared<Throttle>(clock);
}

void GivingWay::set_rates(std::uint64_t flush_rate, std::uint64_t replica_rate) {
  limit(BackgroundWork::flush).rate_max = flush_rate;
  limit(BackgroundWork::copies).rate_max = replica_rate;
}

std::shared_ptr<void> GivingWay::begin_receiving() {
  return std::make_shared<WorkMeter::Pass>(receiving_.begin(clock_.now()));
}

GivingWay::Seen GivingWay::look() const {
  Seen seen;
  seen.at = clock_.now();
  for (std::size_t index = 0; index < limits_.size(); ++index) {
    seen.under_way[index] = limits_[index].meter.total(seen.at);
    seen.bytes[index] = limits_[index].throttle->bytes_taken();
  }
  seen.receiving = receiving_.total(seen.at);
  return seen;
}

void GivingWay::step_time(std::uint32_t rank, const control::StepTime& steps) {
  if (steps.steps == 0 || steps.time <= Duration(0)) return;
  const Seen now = look();
  silent_from_ = now.at + std::max(silence_min, silence_steps * steps.time);
  const auto [entry, is_new] = seen_.try_emplace(rank, now);
  const Seen before = std::exchange(entry->second, now);
  if (is_new || now.at <= before.at) return;
  const double elapsed = std::chrono::duration<double>(now.at - before.at).count();
  StepSample sample;
  sample.rank = rank;
  sample.step.at = now.at;
  sample.step.seconds = std::chrono::duration<double>(steps.time).count() / steps.steps;
  sample.step.during_capture = steps.during_capture;
  sample.is_alone = now.receiving == before.receiving && !receiving_.is_under_way();
  for (std::size_t index = 0; index < limits_.size(); ++index) {
    const Duration under_way = now.under_way[index] - before.under_way[index];
    const std::uint64_t bytes = now.bytes[index] - before.bytes[index];
    WorkBeside& beside = sample.beside[index];
    beside.share = std::chrono::duration<double>(under_way).count() / elapsed;
    beside.bytes_per_second = static_cast<std::uint64_t>(static_cast<double>(bytes) / elapsed);
    const bool is_idle = under_way == Duration(0) && !limits_[index].meter.is_under_way();
    sample.is_alone = sample.is_alone && is_idle;
  }
  control_.add(sample);
  apply();
}

void GivingWay::update(const Ranks& ranks, bool is_ending, std::size_t copies) {
  bool is_attached = false, is_closing = is_ending;
  std::uint64_t step_bytes = 0;
  for (const auto& [number_of_rank, rank] : ranks) {
    if (!rank.session) continue;
    is_attached = is_attached || rank.session->events != nullptr;
    is_closing = is_closing || rank.session->close_deadline.has_value();
    step_bytes += rank.wanted_slot_bytes;
  }
  is_training_ = is_attached && !is_closing;
  control_.set_minimum(BackgroundWork::flush, rate_for(step_bytes, flush_time_max));
  control_.set_minimum(BackgroundWork::copies, rate_for(step_bytes * copies, copy_time_max));
  apply();
}

void GivingWay::apply() {
  const bool is_measured = silent_from_ && clock_.now() < *silent_from_;
  for (const BackgroundWork work : all_work) {
    WorkLimit& one = limit(work);
    const std::uint64_t measured = is_measured ? control_.limit(work).value() : 0;
    const std::uint64_t rate = is_training_ ? lower(one.rate_max, measured) : 0;
    if (rate == one.throttle->rate()) continue;
    one.throttle->set_rate(rate);
    if (measured == 0 || rate != measured || !notice_.may_speak()) continue;
    log_info("job={} gives way to training: steps beside {} took {:.1f} % longer, at most {} MB/s",
             job_, work == BackgroundWork::flush ? "flushes" : "copies",
             100 * (control_.step_ratio(work).value_or(1) - 1), rate / 1'000'000);
  }
}

}  // namespace ckpt::node
