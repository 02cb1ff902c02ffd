// FlushParts: a flush under way, part by part: which node writes the part of each rank.
//
//   written by a node --reported--> done, and stays done without that node
//        |  the node is lost, fails, or makes no progress for the deadline
//        +--> given to another holder of the same copy, as the next turn
//
// Each holder is tried once. The turn that is done first counts: a node that only hung may still
// come first. If no other node holds the copy, a writer that fails makes the flush fail. If it is
// lost or hangs, the flush waits for it: nothing better can be done, unless there is a newer step.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "agree/cluster_view.hpp"
#include "base/clock.hpp"

namespace ckpt::agree {

enum class FlushProgress : std::uint8_t { running, complete, failed };

class FlushParts {
 public:
  // `unassigned` has no writers yet. Nodes to avoid write only the parts that no other node can.
  // None: some shard has no live copy.
  static std::optional<FlushParts> make(const ClusterView& view, format::FlushOrder unassigned,
                                        const std::set<std::string>& to_avoid, Time now);

  // Whether nodes other than these hold each shard of the step.
  static bool can_avoid(const ClusterView& view, format::StepId at,
                        const std::set<std::string>& nodes);

  // Follows the reports of the nodes; may give parts to other nodes.
  FlushProgress look(const ClusterView& view, Time now, Duration stalled_after);

  const format::FlushOrder& order() const { return order_; }
  std::vector<Digest> digests() const;                     // By rank.
  bool had_several_writers() const;                        // For one part.
  const std::string& failure() const { return failure_; }  // When it has failed.
  // The part that no node can go on with for now; empty: none. For people.
  const std::string& stuck() const { return stuck_; }
  // The nodes that made no progress within the deadline.
  const std::set<std::string>& hung() const { return hung_; }

 private:
  struct Part {
    Digest digest;
    bool is_done = false;
    std::vector<std::string> writers;  // By turn.
  };
  struct Writer {
    std::uint64_t progress = 0;
    Time moved_at{};
  };

  void note_progress(const ClusterView& view, Time now);
  bool has_stalled(const std::string& node, Time now, Duration stalled_after) const;
  void find_done(const ClusterView& view, std::size_t rank);
  std::string trouble_of(const ClusterView& view, std::size_t rank) const;
  bool give_to_another(const ClusterView& view, std::size_t rank, Time now, Duration stalled_after);

  format::FlushOrder order_;
  std::vector<Part> parts_;                // By rank.
  std::map<std::string, Writer> writers_;  // Those that were given parts.
  std::set<std::string> hung_;
  std::string failure_;
  std::string stuck_;
};

}  // namespace ckpt::agree
