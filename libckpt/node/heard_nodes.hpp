// HeardNodes: what the other nodes of a job told this one: their newest reports, and who belongs to
// the job as they see it.
//
// A report counts as long as its node repeats it. A node that reports to another coordinator by now
// may have freed what its last report to us names.
//
// Threads: the engine's.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "agree/cluster_view.hpp"
#include "base/clock.hpp"

namespace ckpt::node {

class HeardNodes {
 public:
  // True: there is something new to decide on.
  bool report_received(format::NodeReport report, Time now);
  void decree_received(const format::Decree& decree);
  // Should we coordinate again, all nodes report anew.
  void forget_reports() { reports_.clear(); }

  // The report that `node` has repeated since `since`, if it speaks of the same run, list of nodes
  // and members as we do; null: there is none.
  const format::NodeReport* report_of(const std::string& node, const agree::JobShape& shape,
                                      const Digest& members, Time since) const;
  // It said so, or has another run of the job by now.
  bool has_ended(const std::string& node, const format::RunId& run) const;
  // Names the live nodes that were given another job than we were; empty: none.
  std::string at_odds(const agree::JobShape& shape, const Digest& members, const std::string& self,
                      const std::function<bool(const std::string& node)>& is_live) const;

 private:
  struct Heard {
    format::NodeReport report;
    Time heard_at{};
  };
  struct Job {  // As a node was told.
    format::RunId run;
    std::uint64_t incarnation = 0;
    Digest members;
  };
  std::map<std::string, Heard> reports_;  // The newest of each node.
  std::map<std::string, Job> jobs_;
};

}  // namespace ckpt::node
