// CoverageCheck: says which declared tensors lack elements in the newest stored step, or are of
// different forms in different ranks, and keeps the last step that lacks less: a rank that forgets
// its piece would else be noticed at a restore, when retention has deleted what was whole. In a job
// in memory alone, it looks at the committed step.
//
// Where this node coordinates, it reads the descriptions of each such step whose layouts are not
// those of a step that was looked through: in the background, or before retention deletes any.
//
//   published --> same layouts as before? --> the same holes --> said --> stored whole --> not said
//                  other ones --> looked through ---^
//
// Threads: the engine's. Lifetime: the JobStorage's; its coroutines hold the Job.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gather/look_through.hpp"
#include "node/job_facts.hpp"
#include "node/job_life.hpp"
#include "node/stored_place.hpp"
#include "node/stored_reads.hpp"
#include "storage/retention.hpp"

namespace ckpt::node {

class CoverageCheck {
 public:
  // Steps that one retention looks through. Those that it does not reach stay until the next one.
  static constexpr std::size_t looks_max = 32;
  // Steps whose holes are known; the oldest are forgotten first.
  static constexpr std::size_t known_max = 4096;

  CoverageCheck(const JobFacts& facts, JobLife& life, StoredReads& reads)
      : facts_(facts), life_(life), reads_(reads) {}

  void update(bool is_coordinator);
  using OpenShards = std::function<std::shared_ptr<gather::ShardSource>()>;
  struct HeldStep {
    Digest layouts;  // storage::digest_of_layouts().
    OpenShards open;
  };
  using Describe = std::function<std::optional<HeldStep>()>;  // None: some shard is nowhere.
  // The committed step of a job in memory alone; it is described if it has to be.
  void update_held(format::StepId at, const Describe& describe);
  // `layouts`: PublishOutcome::layouts.
  void published(format::StepId at, std::optional<Digest> layouts);
  // Before a deletion in this place: adds the step that stays for what newer ones lack. A newest
  // one that could not be looked through counts as one that lacks something.
  asio::awaitable<void> protect(StoredPlace& place, const std::vector<storage::Checkpoint>& there,
                                storage::RetentionOrder& order);

  const gather::Missing& missing() const { return missing_; }  // In the newest known step,
  const std::optional<format::StepId>& checked() const { return newest_; }  // which is this one.
  std::string text() const;  // For people; empty: it lacks nothing, or nobody knows.

 private:
  struct Known {
    std::optional<Digest> layouts;
    gather::Missing missing;
  };
  // A look in the background, at a stored or a held step: from begin_look() to ended().
  bool is_wanted(format::StepId at);
  void begin_look(format::StepId at);
  asio::awaitable<void> run(format::StepId at);
  asio::awaitable<void> run_held(format::StepId at, OpenShards open);
  void ended(format::StepId at, const Status& looked);
  void log_unknown(format::StepId at, const Error& error) const;
  // Opens a stored step, in whichever place it can be read, or in this one. look() reads it.
  Task<void> look_in_places(format::StepId at);
  Task<void> look_in(StoredPlace& place, storage::Checkpoint checkpoint);
  Task<void> look(storage::OpenStep step);
  // A look before a deletion.
  asio::awaitable<void> learn(StoredPlace& place, storage::Checkpoint checkpoint);
  void know(format::StepId at, Known known);
  void show(format::StepId at);
  const char* place() const;  // In which the steps lie.
  void forget();

  const JobFacts& facts_;
  JobLife& life_;
  StoredReads& reads_;
  std::map<format::StepId, Known> known_;
  std::optional<format::StepId> newest_;  // The newest durable or held one that is known.
  gather::Missing missing_;               // In that.
  Step since_{};                          // The first one with these holes.
  std::optional<format::StepId> kept_;    // In the place that was looked at last.
  std::optional<format::StepId> tried_;   // In the background.
  bool is_looking_ = false;               // Likewise.
};

}  // namespace ckpt::node
