// ControlMessages: what a trainer, or the command line, and the node's daemon tell one another.
//
// libckpt/docs/protocol.md, "Trainer and daemon", has the byte tables and who may send what. Slots'
// descriptors travel beside SlotSegments; everything else is in the messages themselves.
#pragma once

#include <chrono>
#include <ckpt/options.hpp>
#include <ckpt/outcome.hpp>
#include <ckpt/result.hpp>
#include <ckpt/stats.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "format/layout.hpp"
#include "format/shard_record.hpp"

namespace ckpt::wire::control {

// The first message of both sides. Its bytes are the same in every version of the protocol.
struct Hello {
  std::uint32_t protocol = 0;
  std::string software;  // "0.1.0"
};

// Trainer to daemon.
struct Attach {
  std::uint64_t start_time = 0;  // Of the process: proof that its pid was not given to another.
  std::string job, dir;
  std::uint32_t rank = 0, world_size = 1;
  std::vector<Node> nodes;
  std::string node;
  std::uint64_t incarnation = 0;
  Interval save_mem_interval, save_storage_interval;
  std::uint32_t max_ckpt_num = 0, replicas = 0, own_slots = 0;
  std::uint64_t flush_rate = 0, replica_rate = 0;
  std::string secret_file;  // A path: the secret itself is never sent.
  bool has_continuation = false;
  std::uint64_t start_id = 0, timeline = 0;  // Of the continuation.
};
struct SetLayout {
  format::Layout layout;
};
// Slots are named with the generation that came with their segments, so that a call that crossed a
// new set of Slots, or a new daemon, on its way does not hit another Slot of the same number.
struct Begin {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  Step step{};
};
struct FilledSlot {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  Step step{};
  std::uint32_t layout_version = 1;
  std::uint64_t blob_bytes = 0;
  std::vector<format::Extent> blobs;
  std::vector<std::string> blob_names;
  std::uint64_t chunk_bytes = 0;
  std::vector<Crc32> chunk_crcs;
};
struct Abandon {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
};
struct Skipped {
  Step step{};
};
// The answers to these two say which one they answer: it may be late, and the trainer ask anew.
struct StartFresh {
  std::uint64_t ask = 0;
};
struct AskRestore {
  std::uint64_t ask = 0;
  std::optional<Step> wanted;
};
struct RestoreResult {
  std::uint64_t offer = 0;
  Status result;
};
struct RestoredOk {
  Step step{};
};
struct Close {
  std::chrono::milliseconds deadline{0};
};
struct Goodbye {};  // Nothing of the Slots is mapped any more.

// Daemon to trainer.
struct AttachAnswer {
  Status result;
  std::uint64_t session = 0;
  format::RunId run;
};
// Some or all segments of one Slot, with a descriptor for each.
struct SlotSegments {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  std::uint64_t capacity = 0;
  std::uint32_t first = 0, count_of_all = 0;
  std::vector<std::uint64_t> bytes;  // Of each segment sent here.
};
struct SlotsReady {
  std::uint32_t count = 0;
};
struct SlotsFailed {
  Status result;  // Always an error.
};
struct Granted {
  std::uint32_t slot = 0;
};
struct NextCapture {
  Step step{};
};
struct LevelReached {
  Step step{};
  Level level = Level::captured;
};
struct StepDropped {
  Step step{};
};
struct Offer {
  std::uint64_t ask = 0, offer = 0;
  std::uint32_t slot = 0;
  RestoreSource source = RestoreSource::own_memory;
  std::string source_name;
  std::shared_ptr<const format::ShardRecord> record;
};
struct Begun {
  std::uint64_t ask = 0, start_id = 0, timeline = 0;
  std::optional<format::StepId> restored;
  Status result;
  std::string reason;  // Why this step; for people.
};
struct Closed {
  Status result;
};
struct Fenced {
  std::string reason;
};

// Command line to daemon. Each is answered by one Answer.
struct AskStatus {};
struct AskRecover {
  std::string job;
};
struct Stop {
  std::chrono::milliseconds deadline{0};
  bool flush = true;
};
struct Drop {
  std::string job;
};
struct Answer {
  Status result;
  std::string json;
};

// Trainer to daemon, now and then while a Slot is filled: its first `bytes` are as they will be
// sealed, so that their checksums can be taken meanwhile.
struct Arrived {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  std::uint64_t bytes = 0;
};

// Trainer to daemon: it waits until `step` is stored, so the newest committed step that is not
// older is flushed now, whatever the interval says.
struct Flush {
  Step step{};
};
// Trainer to daemon, with a save, due or not: how long steps took since the last one.
struct StepTime {
  std::uint32_t steps = 1;
  std::chrono::nanoseconds time{0};  // Of all of them, without calls of libckpt.
  bool during_capture = false;
};
// Daemon to trainer, whenever one of them changes; for people, empty: nothing.
struct Notice {
  std::string waiting;     // What its calls wait for.
  std::string degraded;    // What the job lacks, or why its steps are not stored.
  std::string unstorable;  // Why no step can be stored: whoever waits for one fails with it.
};
// Daemon to trainer, a few times a second while it brings the shard that a restore waits for.
struct Filling {
  std::uint64_t bytes = 0;  // So many are there, and verified.
  std::uint64_t bytes_total = 0;
  std::string source_name;
};

}  // namespace ckpt::wire::control
