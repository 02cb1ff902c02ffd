// SecondPlace: copies of a job's stored steps in its second place, made by the coordinator's node.
//
//   idle --wake--> looks what is there --> records the timelines --> copies the newest step -->
//   idle
//                                   ^----- a pause after a failure -----+
//
// One step is copied at a time, from the files of the first place, with every Chunk verified. The
// newest one wins. Flushes go first, and the copy takes its bytes from their throttle; where they
// never end, it gets a turn beside them. Nothing here holds up a flush, a restore or training: a
// failed copy shows as degraded, and is retried.
//
// Threads: the engine's. Lifetime: the JobStorage's; its coroutines hold the Job.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/signal.hpp"
#include "node/giving_way.hpp"
#include "node/job_facts.hpp"
#include "node/job_life.hpp"
#include "node/stored_place.hpp"
#include "storage/places.hpp"
#include "storage/retention.hpp"

namespace ckpt::node {

class SecondPlace {
 public:
  struct Hooks {
    std::function<bool()> may_copy;  // Only the coordinator's node does.
    // Returns when no flush is written here, and at the deadline.
    std::function<Task<void>(Time deadline)> wait_for_flush;
    std::function<void()> catalog_changed;
    // As CoverageCheck::protect, in the second place.
    std::function<asio::awaitable<void>(const std::vector<storage::Checkpoint>& there,
                                        storage::RetentionOrder& order)>
        protect;
  };
  // Both places outlive it.
  SecondPlace(const JobFacts& facts, JobLife& life, GivingWay& giving_way, StoredPlace& first,
              StoredPlace& second, Hooks hooks);

  void set_retention(storage::RetentionRule rule) { retention_ = std::move(rule); }
  // Its catalog was read, or could not be.
  void note_read(const Status& read);

  void published();  // The first place has got a step.
  void begun();      // A timeline has begun, and must be known in the second place, too.
  void recorded();   // Timelines, or what was restored how often, were stored in the first place.
  void finish();     // Nothing newer will come: the newest step is copied, whatever the pace.
  void wake();       // Looks whether something is to be done.
  void stop();

  // The step that is being copied: the first place keeps it as long.
  const std::optional<format::StepId>& copying() const { return copying_; }
  // The last copy is under way, and goes on: the job is kept for it.
  bool is_finishing() const;
  // Why the second place is behind; empty: it is not.
  std::string trouble(Time now) const;
  const std::string& directory() const { return second_.directory(); }
  std::optional<format::StepId> newest() const;  // There; none also where it was never read.
  nlohmann::json status() const;

 private:
  std::optional<format::StepId> step_to_copy() const;
  bool has_work() const;
  asio::awaitable<void> run();
  Task<void> work();
  Task<void> record();
  Task<void> mend_latest();
  Task<void> make_room();
  Task<void> copy(format::StepId at);
  Task<void> take_turn(std::uint64_t bytes);
  Task<void> clean_up(format::StepId copied);
  void note(const Status& done);
  Duration pause() const;

  const JobFacts& facts_;
  JobLife& life_;
  GivingWay& giving_way_;
  StoredPlace& first_;
  StoredPlace& second_;
  const Hooks hooks_;
  Signal changed_;
  storage::RetentionRule retention_;
  bool is_known_ = false;  // Whether its contents are known.
  bool must_record_ = false, must_mend_ = false;
  bool is_last_ = false;
  bool is_running_ = false, is_stopped_ = false;
  std::uint64_t published_since_ = 0;  // Since the last copy began.
  std::optional<format::StepId> copying_;
  Time progressed_at_{};
  Duration waited_{};  // For flushes, since the copy had a turn beside them.
  Time turn_until_{};
  std::uint32_t failures_ = 0;  // In a row.
  std::string trouble_;         // The first of them; empty: none.
};

}  // namespace ckpt::node
