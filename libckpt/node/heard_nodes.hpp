// HeardNodes: the news from a job's other nodes: their newest reports, the decrees, and the job as
// they see it.
//
// With each beat a node repeats the number of the report that it stands by: its statement. A report
// counts only while its node states it to us. A node that reports to another coordinator by now may
// have freed what its last report to us names, and one that was started again has lost it.
//
// Threads: the engine's.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "agree/cluster_view.hpp"

namespace ckpt::node {

class HeardNodes {
 public:
  void report_received(format::NodeReport report);
  // Kept: its node may turn out to be the coordinator later.
  void decree_received(format::Decree decree);
  // The number of the report that the node states to us; 0: none. `boot` is of its process,
  // not of one that ran before. The number may come before the report, whose Start is fetched
  // first.
  void stated(const std::string& node, std::uint64_t boot, std::uint64_t number);

  // The report that `node` states to us, if it speaks of the same run, list of nodes and members as
  // we do; null: there is none.
  const format::NodeReport* report_of(const std::string& node, const agree::JobShape& shape,
                                      const Digest& members) const;
  const format::Decree* decree_of(const std::string& node, const agree::JobShape& shape,
                                  const Digest& members) const;
  // Its newest report says so, or it has another run of the job by now.
  bool has_ended(const std::string& node, const format::RunId& run) const;
  // Names the live nodes that were given another job than we were; empty: none.
  std::string at_odds(const agree::JobShape& shape, const Digest& members, const std::string& self,
                      const std::function<bool(const std::string& node)>& is_live) const;

 private:
  struct Heard {
    std::optional<format::NodeReport> report;
    std::optional<format::Decree> decree;
    std::uint64_t boot = 0, stated = 0;
  };
  struct GivenJob {  // The job that a node was given, as its message says.
    format::RunId run;
    std::uint64_t incarnation = 0;
    Digest members;
  };
  std::map<std::string, Heard> heard_;  // The newest of each node.
  std::map<std::string, GivenJob> jobs_;
};

}  // namespace ckpt::node
