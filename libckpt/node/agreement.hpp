// Agreement: this node's report, what the coordinator sees, and the decree that comes of it.
//
// The lowest live node of the list coordinates. Each node reports to it; it sends its decree to
// all. Both are whole states: the newest one counts, and repeating one changes nothing.
//
// Threads: the engine's. Lifetime: the Job's; its coroutines hold the Job.
#pragma once

#include <optional>
#include <vector>

#include "agree/coordinator.hpp"
#include "node/job_storage.hpp"
#include "node/ranks.hpp"
#include "node/seen_cluster.hpp"

namespace ckpt::node {

class Agreement {
 public:
  // It alone writes the facts that are agreed.
  Agreement(JobFacts& facts, JobLife& life, const Ranks& ranks, SlotTable& slots, Peers& peers,
            JobStorage& storage);

  void open();           // The directory was opened.
  void shape_changed();  // A trainer attached: the job's shape or our name may be another.
  void learn(const format::Timelines& stored);
  void build_report(bool is_flush_wanted);
  // Decides where this node coordinates. True: a newer decree is in the facts, to be obeyed.
  bool decide();

  const format::NodeReport& report() const { return report_; }
  const agree::ClusterView& view() const;
  bool is_announcing() const { return is_announcing_; }
  // Where this node coordinates: the newest step is to be on storage before the job ends.
  bool is_final() const { return was_coordinator_ && coordinator_.is_final(); }

 private:
  bool follow();
  bool adopt(const format::Decree& decree);
  asio::awaitable<void> announce();
  Task<void> claim_timeline(format::Start start, Time deadline);

  JobFacts& facts_;
  JobLife& life_;
  const Ranks& ranks_;
  SlotTable& slots_;
  Peers& peers_;
  JobStorage& storage_;
  Time opened_at_{};
  mutable SeenCluster seen_;  // By view(), as it was then.
  format::NodeReport report_;
  agree::Coordinator coordinator_;
  std::optional<std::uint64_t> start_announced_;        // Its history was stored, or could not be.
  std::vector<format::RestoreCount> counts_announced_;  // As stored, or as they should have been.
  std::string overtaken_;  // By another daemon, since nobody has begun here; for people.
  std::uint64_t overtaken_since_ = 0;  // The newest timeline then.
  bool was_coordinator_ = false, has_followed_ = false, is_announcing_ = false;
};

}  // namespace ckpt::node
