// GivingWay: how fast one job of this node may write to storage and send to peers.
//
// The options' limits hold while somebody trains here. Below them the trainers' own step times
// steer both (YieldControl); a trainer that sends none, or none any more, is not given way to.
// Nothing is limited when the job is being closed or the daemon ends, and never a restore.
//
// Threads: the engine's.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/log.hpp"
#include "base/throttle.hpp"
#include "node/ranks.hpp"
#include "node/work_meter.hpp"
#include "node/yield_control.hpp"

namespace ckpt::node {

class GivingWay {
 public:
  // While it gives way, a node's part of a step is copied and written in no more than this, where
  // network and storage can do it: then it is committed, and durable.
  static constexpr Duration copy_time_max = std::chrono::seconds(20);
  static constexpr Duration flush_time_max = std::chrono::seconds(60);
  // Without a word for so long, or for several times as long as the steps take, nobody trains.
  static constexpr Duration silence_min = std::chrono::seconds(2);
  static constexpr int silence_steps = 4;

  GivingWay(Clock& clock, std::string job);

  // The options' limits; 0: none.
  void set_rates(std::uint64_t flush_rate, std::uint64_t replica_rate);

  // How the work says what it does: each byte is taken from the throttle, and the pass is held
  // while it lasts.
  const std::shared_ptr<Throttle>& throttle(BackgroundWork work) const {
    return limit(work).throttle;
  }
  WorkMeter::Pass begin(BackgroundWork work) { return limit(work).meter.begin(clock_.now()); }
  // The same of copies that peers send, which this node does not slow down.
  std::shared_ptr<void> begin_receiving();

  void step_time(std::uint32_t rank, const control::StepTime& steps);
  void forget(std::uint32_t rank) { seen_.erase(rank), control_.forget(rank); }
  // Looks at everything again. `is_ending`: the daemon is, and flushes. `copies`: of each rank.
  void update(const Ranks& ranks, bool is_ending, std::size_t copies);

  // The limit that holds now, in bytes per second; 0: none.
  std::uint64_t rate(BackgroundWork work) const { return limit(work).throttle->rate(); }
  std::optional<double> step_ratio(BackgroundWork work) const { return control_.step_ratio(work); }

 private:
  struct WorkLimit {
    std::shared_ptr<Throttle> throttle;
    WorkMeter meter;
    std::uint64_t rate_max = 0;  // The option.
  };
  // All work up to the moment when a rank last sent its step time.
  struct Seen {
    Time at{};
    std::array<Duration, all_work.size()> under_way{};
    std::array<std::uint64_t, all_work.size()> bytes{};
    Duration receiving{0};
  };

  WorkLimit& limit(BackgroundWork work) { return limits_[static_cast<std::size_t>(work)]; }
  const WorkLimit& limit(BackgroundWork work) const {
    return limits_[static_cast<std::size_t>(work)];
  }
  Seen look() const;
  void apply();

  Clock& clock_;
  const std::string job_;
  std::array<WorkLimit, all_work.size()> limits_;
  WorkMeter receiving_;
  YieldControl control_;
  std::map<std::uint32_t, Seen> seen_;  // By rank.
  std::optional<Time> silent_from_;     // None: no step time has come.
  bool is_training_ = false;
  LogLimit notice_{60.0};
};

}  // namespace ckpt::node
