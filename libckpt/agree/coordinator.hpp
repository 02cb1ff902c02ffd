// Coordinator: decides from the reports of all nodes what all nodes do.
//
// Every node has one and runs it while it is the lowest live node of the list. It keeps nothing
// essential: a successor begins from the reports alone.
//
// Threads: one. Pure except for the random ids, which come from the seed.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agree/capture_rule.hpp"
#include "agree/cluster_view.hpp"
#include "agree/flush_parts.hpp"
#include "agree/flush_rule.hpp"
#include "agree/start_rule.hpp"
#include "base/clock.hpp"
#include "base/random.hpp"

namespace ckpt::agree {

struct CoordinatorOptions {
  std::string node;
  std::uint64_t boot = 0;
  Duration collect_grace = std::chrono::seconds(3);  // For nodes that may still come.
  Duration attempt_pause = std::chrono::milliseconds(250);
  // For the list of stored steps; then memory serves alone, if it has all known steps.
  Duration storage_patience = std::chrono::seconds(3);
  Duration capture_notice = std::chrono::milliseconds(300);  // For a step to reach all ranks.
  Duration flush_retry_after = std::chrono::seconds(2);      // Doubles up to the maximum.
  Duration flush_retry_after_max = std::chrono::seconds(60);
  Duration flush_stalled_after = std::chrono::seconds(60);  // Without progress of a writer.
  // For a node that hung as a writer: each new try would cost the deadline again.
  Duration hung_writer_avoided_for = std::chrono::minutes(10);
  Duration flush_slow_after = std::chrono::seconds(30);  // Then it is reported, if more is due.
};

// Publishing: all ranks' files of a flush are synced; the engine writes and publishes the manifest.
struct Publishing {
  format::FlushOrder order;
  std::vector<Digest> digests;
  bool had_several_writers = false;     // One part had; some may have left files.
  std::vector<format::StepId> damaged;  // On storage, as nodes found; a repair may mend them.
};

// UnrecordedStart: a Start that storage has not recorded and nobody was sent yet, and the decisions
// before it.
struct UnrecordedStart {
  std::uint64_t start_id = 0;
  format::Decree before;
  FlushHistory flush_history;
  std::optional<FlushParts> flush_parts;
  std::optional<Publishing> publishing;
  std::optional<format::StepId> abandons;  // The newest good stored step that it abandons.
  bool is_blind = false;                   // Its step was chosen without storage.
};

class Coordinator {
 public:
  explicit Coordinator(CoordinatorOptions options);
  // A newer list of nodes may have another name for this one.
  void set_node(const std::string& node) { options_.node = node; }

  // Only a bug can break these. Reports are input, and nothing is asserted about them.
  void check_invariants() const;

  // Looks again at everything. True: the decree has changed, and must be sent to all nodes.
  bool decide(const ClusterView& view, Time now);
  const format::Decree& decree() const { return decree_; }

  // Work that the engine has to do for the coordinator, if any.
  bool needs_published() const { return needs_published_; }
  std::optional<Publishing> publishing() const { return publishing_; }
  // The answer to publishing(). On failure the flush is given up and tried again later.
  void published(std::uint64_t flush_id, const Status& status, Time now);

  // The Start that goes and was not recorded yet; null: there is none. It is recorded on storage
  // before it is sent; the number of its timeline may be taken there. Answers about a Start that no
  // longer stands change nothing.
  const UnrecordedStart* unrecorded() const;
  void claimed(std::uint64_t start_id, std::uint64_t timeline);  // With a free number.
  void sent(std::uint64_t start_id);
  void refuse(std::uint64_t start_id, const Error& error);  // It fails; all else is as before it.

  const std::vector<Candidate>& candidates() const { return candidates_; }
  // All attached trainers close, or a daemon is asked to end: the newest step is to be on storage.
  bool is_final() const { return is_final_; }
  // Forgets the flush and all decisions: another node is the coordinator now.
  void step_down();

 private:
  bool decide_all(const ClusterView& view, Time now);
  void end_flush(std::uint64_t flush_id, const Status& status, Time now);
  void adopt_reports(const ClusterView& view);
  void adopt_published(const ClusterView& view);
  void clear_of_suspicion(const ClusterView& view);
  std::uint64_t running_timeline(const ClusterView& view) const;
  void decide_commits(const ClusterView& view, Time now);
  std::uint64_t committing_timeline(const ClusterView& view) const;
  void decide_captures(const ClusterView& view, Time now);
  static bool is_flush_wanted(const ClusterView& view);
  bool must_store_again(const ClusterView& view) const;
  void decide_flush(const ClusterView& view, Time now);
  bool is_storage_late(const ClusterView& view, Time now) const;
  void decide_beginning(const ClusterView& view, Time now);
  void adopt_go(const ClusterView& view, Time now);
  void begin(const format::Start& start, const ClusterView& view, Time now);
  std::optional<format::StepId> newest_abandoned(const ClusterView& view,
                                                 const format::Decree& before) const;
  bool is_too_soon(const format::Start& next, Time now) const;
  void decide_end(const ClusterView& view);
  void follow_flush(const ClusterView& view, Time now);
  void forget_flush();
  void end_set_aside_flush(const Status& status);
  void give_up_flush(const std::string& why, Time now);
  void forget_flush_pause();
  void notice_new_trainers(const ClusterView& view);
  void remember_hung_writers(Time now);
  std::set<std::string> writers_to_avoid(Time now) const;
  void describe(const ClusterView& view, Time now);
  std::string lost_part(const ClusterView& view) const;
  std::string slow_flush(const ClusterView& view, Time now) const;
  std::string silent_storage(const ClusterView& view, Time now) const;
  std::string silent_nodes(const ClusterView& view, Time now);
  std::string thin_base(const ClusterView& view, std::size_t wanted) const;
  bool is_asked_again(const ClusterView& view, const format::Start& start) const;
  void keep_newest_seen(format::Start& start) const;

  CoordinatorOptions options_;
  Random random_;
  format::Decree decree_;
  FlushHistory flush_history_;
  std::optional<FlushParts> flush_parts_;  // Follows decree_.flush, if there is one.
  std::optional<Publishing> publishing_;
  std::map<std::string, Time> hung_writers_;  // Other nodes are preferred until then.
  std::vector<Candidate> candidates_;
  std::optional<Time> asked_since_;       // Ranks wait to begin since then.
  std::optional<Time> storage_asked_at_;  // It has not answered since then.
  bool is_vote_blind_ = false;            // The newest vote was held without it.
  bool has_trained_ = false;              // A step was seen since the newest Start went.
  bool is_asked_again_ = false;           // The pending Start is for the step of the one before.
  Time attempted_at_{};                   // When the Start last changed.
  std::optional<Time> flush_not_before_;
  std::set<std::uint64_t> sessions_;  // The trainers at the last look.
  std::string flush_trouble_;    // Why the newest flush failed, until one succeeds; for people.
  format::StepId not_stored_;    // The step of that flush.
  std::string foreign_trouble_;  // Another writer in the directory; for people.
  Duration flush_backoff_;
  CaptureRule captures_;
  std::optional<Time> unreported_since_;  // Live nodes have not reported since then.
  bool needs_published_ = false;
  bool is_final_ = false;
  std::optional<UnrecordedStart> unrecorded_;
};

}  // namespace ckpt::agree
