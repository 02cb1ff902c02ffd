// ClusterView: the coordinator's view of its job at one moment; the input of every decision.
//
// All functions over it are pure. It leaves out the reports of lost nodes, and those of another
// run, membership or incarnation.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agree/job_shape.hpp"
#include "agree/report_index.hpp"
#include "format/agreement.hpp"

namespace ckpt::agree {

// PublishedStep: a complete checkpoint on storage, as its manifest says.
struct PublishedStep {
  format::StepId at;
  std::uint32_t world_size = 0;
  std::vector<Digest> digests;  // From the shard records, by rank.
};

// UnreadableStep: a directory on storage that may be a good step, and could not be read.
struct UnreadableStep {
  Step step{};  // By its name: which timeline it is of is not known.
  std::string why;
};

// LastLookState: whether the newest stored step is still on storage, looked up when a job is about
// to free the memory that has it, too. Somebody may have removed it by hand.
enum class LastLookState : std::uint8_t { unasked, looking, there, gone };

struct ClusterView {
  JobShape shape;
  Digest members;                                       // members_digest(shape).
  std::vector<format::NodeReport> reports;              // From live nodes, ours included.
  std::optional<std::vector<PublishedStep>> published;  // None: not read yet.
  std::size_t damaged_published = 0;                    // Damaged ones, left out above.
  std::size_t misplaced_published = 0;                  // Links and renamed ones among these.
  std::optional<Step> newest_damaged;                   // The newest damaged one, by its name.
  std::vector<format::StepId> damaged_steps;            // Those that say what they were.
  std::vector<UnreadableStep> unreadable_steps;         // Likewise; no place has them readable.
  LastLookState last_look = LastLookState::there;
  std::string unreadable;              // Why storage cannot be read; empty: it can.
  std::string history_lost;            // Why abandoned steps are not known; empty: they are.
  bool is_history_unreadable = false;  // Then: it is there, and may be good. Nothing replaces it.
  std::string overtaken;               // Why steps in memory were given up; empty: none were.
  std::string holes;                   // In the newest stored step; empty: none known.
  std::vector<std::string> expected;   // Live nodes, and those that may still come.
  // Live nodes that have not reported to this coordinator yet: their holdings are not known.
  std::vector<std::string> unreported;
  bool all_live = false;  // Every node of the list has reported.
  // The index of `reports`, if the owner keeps one; null: made for each call.
  std::shared_ptr<const ReportIndex> index;
};

// RankView: a rank's report and where it comes from.
struct RankView {
  const format::RankReport* report = nullptr;  // Null: no trainer of this rank is attached.
  const format::NodeReport* node = nullptr;
  bool is_doubled = false;  // Two nodes claim it: nothing is decided for it until one is gone.
};
// By rank; always world_size of them.
std::vector<RankView> ranks_of(const ClusterView& view);

bool has_trainers(const ClusterView& view);  // On any live node.
// Any live node knows of a committed step that no start has abandoned.
bool has_committed(const ClusterView& view);

// The copies of step `at`, by rank; made by as many ranks as the job has.
StepCopies copies_of(const ClusterView& view, format::StepId at);
// The same, by the ranks that made it, whatever their number: of a restored step.
StepCopies copies_of_any(const ClusterView& view, format::StepId at);
// The same, made by `saved_by` ranks.
StepCopies copies_of(const ClusterView& view, format::StepId at, std::uint32_t saved_by);
// The steps of other numbers of ranks that some node holds a shard of.
std::vector<ReportIndex::OfOthers> held_steps_of_others(const ClusterView& view);
// The steps that some node holds a shard of, taken by as many ranks as the job has; ascending.
std::vector<format::StepId> held_steps(const ClusterView& view);

// Stored shards that some live node could not use: the kind of damage, by step and rank. Corruption
// outweighs a failed read.
using DamagedShards = std::map<format::StepId, std::map<std::uint32_t, Errc>>;
DamagedShards damaged_shards(const ClusterView& view);
// The same for a restore. A node without a rank has met the damage in an earlier one, and nobody
// reads those files there again: they may have been repaired. While no node has a rank, all counts.
DamagedShards damaged_for_restore(const ClusterView& view);

// The number of distinct failure domains among `nodes`.
std::size_t domain_count(const JobShape& shape, const std::vector<std::string>& nodes);

}  // namespace ckpt::agree
