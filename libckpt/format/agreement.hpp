// Agreement: the reports of nodes to the job's coordinator, and its decrees.
//
// Both are whole states and not events: the newest one replaces all before it, so that loss,
// repetition and reordering are harmless, and a new coordinator needs no history but the reports.
#pragma once

#include <ckpt/outcome.hpp>
#include <ckpt/result.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/shard_record.hpp"
#include "format/start.hpp"

namespace ckpt::format {

struct Holding {  // One verified, sealed copy of a shard on the reporting node.
  ShardId id;
  Digest digest;  // digest_of(record).
  std::uint64_t bytes = 0;
  std::uint32_t world_size = 0;
  bool is_own = false;  // Written by a trainer of this node; else a replica.
  Digest model;         // ShardRecord::model: another one means other parts of tensors.
  bool operator==(const Holding&) const = default;
};

// RestoreWish: the restore that a rank's trainer asked for, and its progress.
enum class StartPhase : std::uint8_t {
  idle,     // The session neither restored nor saved yet.
  asks,     // restore() was called.
  fresh,    // start_fresh() was called: it starts a timeline of its own.
  ready,    // The shard of `attempt` is verified in the trainer.
  failed,   // It could not be had from any source of `attempt`.
  running,  // The start decree was carried out.
  refused,  // The trainer would not have the step, from whatever source: another shape.
  saves,    // Its first save came without either: as `fresh`, if there is nothing to restore.
};

struct RankReport {
  std::uint32_t rank = 0;
  std::uint64_t session = 0;  // Random; new with every trainer and every time it asks.
  StartPhase phase = StartPhase::idle;
  std::optional<Step> wanted;  // restore(step); else the newest.
  SourceChoice source = SourceChoice::any;
  std::uint64_t attempt = 0;  // `ready` and `failed` speak of it.
  // ready, failed, running: the Start they speak of. asks, fresh: the last one this session
  // finished.
  std::uint64_t start_id = 0;
  std::uint64_t timeline = 0;     // While running.
  std::optional<Step> last_seen;  // Newest step that was captured or skipped.
  bool restored_ok = false;       // Training got on after the start `start_id`.
  bool is_closing = false;
  std::vector<StepId> filling;  // Captures under way.
  // For people: why `failed` or `refused`; in any other phase, why it has no Slots.
  std::string failure;
  Errc failure_code{};  // The reaction to it.
  bool lacks_slots() const {
    return !failure.empty() && phase != StartPhase::failed && phase != StartPhase::refused;
  }
  bool operator==(const RankReport&) const = default;
};

struct ShardFlushed {  // One rank's files lie synced in the work directory.
  std::uint32_t rank = 0;
  std::uint32_t turn = 0;  // As FlushWriter::turn.
  Digest digest;
  bool operator==(const ShardFlushed&) const = default;
};

struct ShardNotFlushed {
  std::uint32_t rank = 0;
  std::uint32_t turn = 0;
  std::string failure;  // Why; for people.
  bool operator==(const ShardNotFlushed&) const = default;
};

struct FlushReport {
  bool is_wanted = false;  // This daemon is asked to end: flush the newest committed step now.
  std::uint64_t flush_id = 0;
  std::uint64_t progress = 0;  // Grows while this node's writing gets on.
  std::vector<ShardFlushed> done;
  std::vector<ShardNotFlushed> failed;
  bool operator==(const FlushReport&) const = default;
};

// Damage: one rank's stored files of a step that the reporting node could not use.
struct Damage {
  ShardId id;
  Errc code{};  // corruption: a checksum failed, or a file is missing; else it could not be read.
  auto operator<=>(const Damage&) const = default;
};

// History: how timelines follow one another. Steps above `base` are fenced once a timeline based on
// it exists.
struct TimelineStart {
  std::uint64_t timeline = 0;
  std::optional<StepId> base;
  auto operator<=>(const TimelineStart&) const = default;
};

struct RestoreCount {  // Loop breaker: how often a step was chosen without progress.
  StepId at;
  std::uint32_t times = 0;
  auto operator<=>(const RestoreCount&) const = default;
};

// FlushWriter: which node writes a rank's part of a flush. When the part is given to another node,
// the turn grows. Each turn has file names of its own: two writers never write one file.
struct FlushWriter {
  std::string node;
  std::uint32_t turn = 0;
  bool operator==(const FlushWriter&) const = default;
};

struct FlushOrder {
  std::uint64_t flush_id = 0;
  StepId at;
  std::string work_directory;        // A name below the job's directory, made by the coordinator.
  std::vector<FlushWriter> writers;  // By rank. They may change while the flush goes on.
  bool operator==(const FlushOrder&) const = default;
};

struct LiveNode {
  std::string name;
  std::uint64_t boot = 0;  // Another one than before: it lost what it held.
  auto operator<=>(const LiveNode&) const = default;
};

struct NodeReport {
  std::string job;
  RunId run;
  std::string node;
  std::uint64_t boot = 0;  // The daemon's; changes when its memory is lost.
  std::uint64_t sequence = 0;
  std::uint64_t incarnation = 0;
  Digest members;  // The digest of (nodes, world size, replicas): all must agree.
  std::uint32_t world_size = 0;
  bool has_trainer = false;       // A trainer of the job is attached.
  bool has_ended = false;         // It has heard that the job has ended, and freed its memory.
  std::vector<RankReport> ranks;  // Those of this node's trainers.
  std::vector<Holding> holdings;
  std::vector<StepId> durable;  // Published steps this node has seen on storage.
  std::vector<Damage> damaged;  // Those among them that it could not use. Sorted.
  std::vector<TimelineStart> history;
  std::vector<RestoreCount> restore_counts;
  std::optional<StepId> committed;  // Newest it knows of.
  // The newest that a trainer of this node came to, captured or not. It outlives the trainer.
  std::optional<StepId> newest_seen;
  SharedStart start;  // Newest it has accepted.
  FlushReport flush;
  bool operator==(const NodeReport&) const = default;
};

struct Decree {
  std::string job;
  RunId run;
  std::string coordinator;
  std::uint64_t coordinator_boot = 0;
  std::uint64_t sequence = 0;  // Grows with every decree of one coordinator boot.
  std::uint64_t incarnation = 0;
  Digest members;
  std::optional<StepId> committed;
  std::optional<StepId> durable;
  std::vector<StepId> dropped;  // Given up: release at once.
  Step next_capture{};          // No rank captures a step below it.
  SharedStart start;
  std::optional<FlushOrder> flush;
  std::vector<TimelineStart> history;
  std::vector<RestoreCount> restore_counts;
  std::vector<LiveNode> live;  // Those that have reported. Sorted.
  bool ended = false;          // All ranks closed: every node frees the job's memory.
  bool has_trainer = false;    // A trainer is attached somewhere: no node is idle.
  std::string degraded;        // Empty, or what is missing; for people.
  std::string lost_part;       // Why `committed` can never be stored, if somebody waits for that.
  std::string waiting;         // Empty, or whom a start waits for; for people.
  bool operator==(const Decree&) const = default;
};

// A Start is encoded as its digest alone, and decoded as one that is not known.
std::vector<std::byte> encode(const NodeReport& report);
std::vector<std::byte> encode(const Decree& decree);
// Errors: corruption, version_mismatch.
Result<NodeReport> decode_node_report(std::span<const std::byte> bytes);
Result<Decree> decode_decree(std::span<const std::byte> bytes);

}  // namespace ckpt::format
