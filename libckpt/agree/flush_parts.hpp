// FlushParts: a flush under way, part by part: which node writes the part of each rank.
//
//   written by a node --reported--> done, and kept whatever becomes of that node
//        |  the node is lost, fails, or makes no progress for the deadline
//        +--> given to another holder of the same copy, as the next turn
//
// Each holder is tried once. The turn that is done first counts: a node that only hung may still
// come first. Where no other node holds the copy, a writer that failed fails the flush, and one
// that is lost or hangs is waited for: nothing better can be done, unless there is a newer step.
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
  // `at` goes into `work_directory`. Nodes to avoid write only what nobody else can. None: some
  // shard has no live copy.
  static std::optional<FlushParts> make(const ClusterView& view, format::FlushOrder unassigned,
                                        const std::set<std::string>& to_avoid, Time now);

  // Whether other nodes than those hold each shard of the step.
  static bool can_avoid(const ClusterView& view, format::StepId at,
                        const std::set<std::string>& nodes);

  // Takes account of what the nodes report; may give parts to others.
  FlushProgress look(const ClusterView& view, Time now, Duration stalled_after);

  const format::FlushOrder& order() const { return order_; }
  std::vector<Digest> digests() const;                     // By rank.
  bool had_several_writers() const;                        // Some part, one after another.
  const std::string& failure() const { return failure_; }  // When it has failed.
  // The part that nobody can go on with for now; empty: none. For people.
  const std::string& stuck() const { return stuck_; }
  // The nodes that made no progress for the deadline.
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
