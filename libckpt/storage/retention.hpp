// Retention: selects the checkpoints to delete, and deletes them.
//
// An unreadable step is left out: it counts for nothing, and stays. Damaged ones count for nothing
// either, since a repair may still make them good; they go when there are enough newer good ones.
// Never deletes the newest one, nor the protected ones (the step that runs restore from, the last
// one known good). The order is that of recovery: newer timelines first, then newer steps. Steps
// that a restore abandoned are deleted before any that it could still use.
#pragma once

#include <ckpt/options.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/catalog.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// BestRule: the best checkpoints by one of their metrics. A step without it is none of them, nor
// one that a restore abandoned. The newer of two equal ones is better.
struct BestRule {
  std::uint32_t count = 0;
  std::string metric;
  bool is_greatest = false;
  bool operator==(const BestRule&) const = default;
};

// RetentionRule: the checkpoints that stay: the newest ones, and others for good.
struct RetentionRule {
  std::uint32_t max_ckpt_num = 0;  // The newest so many. 0: all; the rest has no meaning then.
  std::vector<KeepInterval> keep_every;  // Those of these steps, also abandoned ones.
  BestRule best;
  bool operator==(const RetentionRule&) const = default;
};

// "only the newest 3, steps that 1000 divides are kept".
std::string describe(const RetentionRule& rule);
// An error of a disk, or of a user's share of one, that is full gets the room that the rule needs.
// A directory that a door has within a framework's own folder is not named by the rule: what lies
// in the folder stays by the framework's option.
Error with_room(const Error& error, const RetentionRule& rule, std::string_view directory);

// For the log: why the rule deletes it. An abandoned one goes though it may be the newest.
std::string deletion_reason(const Checkpoint& checkpoint, const RetentionRule& rule);

// The first interval counts whose `until` is not passed, as in Levanter.
bool is_kept_for_good(std::span<const KeepInterval> intervals, Step step);

// Why none of them is among the best, though others have metrics: its name may be mistyped. Empty:
// there is no such reason.
std::string explain_no_best(std::span<const Checkpoint> checkpoints, const BestRule& rule);

// The first step for good between `at` and the checkpoint before it, which nobody has stored.
std::optional<Step> first_not_stored(std::span<const KeepInterval> intervals,
                                     std::span<const Checkpoint> checkpoints, format::StepId at);

// Pure. Returns indices into `checkpoints`, the first to delete first. `damaged` are kept until
// `max_ckpt_num` others are newer, and those that the rule keeps longer until somebody collects
// garbage without naming them damaged.
std::vector<std::size_t> select_for_deletion(std::span<const Checkpoint> checkpoints,
                                             const RetentionRule& rule,
                                             std::span<const format::StepId> protected_steps,
                                             std::span<const format::StepId> damaged = {});

struct RetentionOrder {
  format::RunId run;
  RetentionRule rule;
  std::vector<format::StepId> protected_steps;
  std::vector<format::StepId> damaged;
};

// Selects from the catalog, which was just read, and marks abandoned steps in it. `catalog` lives
// until the Task ends.
Task<std::vector<Checkpoint>> choose_superfluous(Site site, RetentionOrder order, Catalog& catalog);

// Deletes the surplus of the catalog, which was just read, and removes it there too. Returns the
// deleted checkpoints; others may be gone by then, or have made way for another of the same name.
// One with a file that cannot be read stays, and is added to the rejected.
// `catalog` lives until the Task ends. After an error, the rest still exists. Errors: those of
// remove_checkpoint.
Task<std::vector<Checkpoint>> apply_retention(Site site, RetentionOrder order, Catalog& catalog);

// For a full disk: applies the rule without a newer checkpoint, as one that was lowered asks for.
// One of those that stay is read first, and must be good. Returns the deleted checkpoints. Errors:
// as apply_retention; corruption (none that stays is good: nothing was deleted).
Task<std::vector<Checkpoint>> make_room(Site site, RetentionOrder order);

}  // namespace ckpt::storage
