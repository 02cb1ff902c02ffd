// ControlMessages: the messages that begin and end a connection to the node's daemon, those that
// only a socket needs, and those of the command line.
//
// libckpt/docs/protocol.md, "Trainer and daemon", has the byte tables and says which side may send
// each message. The Slots' descriptors travel beside SlotSegments; all else is in the messages.
#pragma once

#include <chrono>
#include <ckpt/options.hpp>
#include <ckpt/result.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "format/shard_record.hpp"
#include "wire/control_kind.hpp"

namespace ckpt::wire::control {

// The first message of both sides. Its bytes are the same in every version of the protocol.
struct Hello {
  static constexpr Kind kind{1, "hello"};
  std::uint32_t protocol = 0;
  std::string software;  // "0.1.0"
  friend auto fields(format::Is<Hello> auto& it) {
    return format::field_list(it.protocol, it.software);
  }
};

// Trainer to daemon.

// A trainer that goes on after its daemon was started again: no restore, same timeline.
struct Continuation {
  std::uint64_t start_id = 0;
  std::uint64_t timeline = 0;
};
// Sent once, at a trainer's start.
struct Attach {
  static constexpr Kind kind{2, "attach"};
  std::uint64_t start_time = 0;  // The process's: proves that its pid was not reused.
  std::string job;
  std::string dir;  // Empty: memory only.
  std::uint32_t rank = 0, world_size = 1;
  std::vector<Node> nodes;  // Never empty: one node is a list of one.
  std::string node;         // Ours, in `nodes`.
  std::uint64_t incarnation = 0;
  Interval save_mem_interval, save_storage_interval;
  std::uint32_t max_ckpt_num = 0, replicas = 2, own_slots = 0;
  std::vector<KeepInterval> keep_every;  // These steps stay on storage besides.
  std::uint32_t keep_best = 0;           // And so many of the best by this metric.
  std::string best_metric;
  bool best_is_greatest = false;
  std::uint64_t flush_rate = 0, replica_rate = 0;  // Bytes per second; 0: no limit.
  bool skip_unchanged = false;                     // Peers get only Chunks that have changed.
  std::string compression;                         // "zstd:3"; empty: none.
  std::string secret_file;                         // A path: the secret itself is never sent.
  std::optional<Continuation> continuation;        // None: it starts fresh or restores.
  friend auto fields(format::Is<Attach> auto& it) {
    return format::field_list(
        it.start_time, it.job, it.dir, it.rank, it.world_size, it.nodes, it.node, it.incarnation,
        it.save_mem_interval, it.save_storage_interval, it.max_ckpt_num, it.replicas, it.own_slots,
        it.keep_every, it.keep_best, it.best_metric, it.best_is_greatest, it.flush_rate,
        it.replica_rate, it.skip_unchanged, it.compression, it.secret_file, it.continuation);
  }
};
struct Goodbye {  // No Slot is mapped any more.
  static constexpr Kind kind{13, "goodbye"};
  friend auto fields(format::Is<Goodbye> auto&) { return format::field_list(); }
};

// Daemon to trainer.
struct AttachAnswer {
  static constexpr Kind kind{14, "attach_answer"};
  Status result;
  std::uint64_t session = 0;
  format::RunId run;
  friend auto fields(format::Is<AttachAnswer> auto& it) {
    return format::field_list(it.result, it.session, it.run);
  }
};
// Some or all segments of one Slot, with a descriptor for each.
struct SlotSegments {
  static constexpr Kind kind{15, "slot_segments"};
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  std::uint64_t capacity = 0;
  std::uint32_t first = 0, count_of_all = 0;
  std::vector<std::uint64_t> bytes;  // The size of each segment sent here.
  friend auto fields(format::Is<SlotSegments> auto& it) {
    return format::field_list(it.slot, it.generation, it.capacity, it.first, it.count_of_all,
                              it.bytes);
  }
};
struct SlotsReady {
  static constexpr Kind kind{16, "slots_ready"};
  std::uint32_t count = 0;
  std::uint32_t for_captures = 0;  // The first ones. The others are for restores alone.
  friend auto fields(format::Is<SlotsReady> auto& it) {
    return format::field_list(it.count, it.for_captures);
  }
};

// Command line to daemon, beside AskStatus. Each is answered by one Answer.
struct AskRecover {
  static constexpr Kind kind{27, "ask_recover"};
  std::string job;
  friend auto fields(format::Is<AskRecover> auto& it) { return format::field_list(it.job); }
};
struct Stop {
  static constexpr Kind kind{28, "stop"};
  std::chrono::milliseconds deadline{0};
  bool flush = true;
  friend auto fields(format::Is<Stop> auto& it) {
    return format::field_list(it.deadline, it.flush);
  }
};
struct Drop {
  static constexpr Kind kind{29, "drop"};
  std::string job;
  friend auto fields(format::Is<Drop> auto& it) { return format::field_list(it.job); }
};

// A tool that reads a step in memory sends OpenHeld, which HeldStep answers; then AskRecord and
// AskChunks about its ranks, as long as the connection lasts.
struct OpenHeld {
  static constexpr Kind kind{36, "open_held"};
  std::string job;
  std::optional<Step> step;  // None: the newest.
  friend auto fields(format::Is<OpenHeld> auto& it) { return format::field_list(it.job, it.step); }
};
struct HeldStep {
  static constexpr Kind kind{37, "held_step"};
  Status result;  // After an error the rest says nothing; so in the next two.
  format::RunId run;
  format::StepId at;
  std::vector<Digest> digests;  // By rank: those that saved it.
  Digest members;               // This and the next are for a manifest.
  std::vector<std::string> nodes;
  std::string directory;  // The job's; empty: memory only.
  std::string timelines;  // The history, as timelines.json has it.
  friend auto fields(format::Is<HeldStep> auto& it) {
    return format::field_list(it.result, it.run, it.at, it.digests, it.members, it.nodes,
                              it.directory, it.timelines);
  }
};
struct AskRecord {
  static constexpr Kind kind{38, "ask_record"};
  std::uint32_t rank = 0;
  friend auto fields(format::Is<AskRecord> auto& it) { return format::field_list(it.rank); }
};
struct HeldRecord {
  static constexpr Kind kind{39, "held_record"};
  Status result;
  std::vector<std::byte> record;  // Encoded.
  friend auto fields(format::Is<HeldRecord> auto& it) {
    return format::field_list(it.result, it.record);
  }
};
// Answered by one HeldChunk for each, in this order, or by a single one with an error.
struct AskChunks {
  static constexpr Kind kind{40, "ask_chunks"};
  std::uint32_t rank = 0;
  std::vector<std::uint64_t> chunks;  // Ascending.
  friend auto fields(format::Is<AskChunks> auto& it) {
    return format::field_list(it.rank, it.chunks);
  }
};
struct HeldChunk {
  static constexpr Kind kind{41, "held_chunk"};
  Status result;
  std::vector<std::byte> bytes;
  friend auto fields(format::Is<HeldChunk> auto& it) {
    return format::field_list(it.result, it.bytes);
  }
};

using AnyOther =
    std::variant<Hello, Attach, Goodbye, AttachAnswer, SlotSegments, SlotsReady, AskRecover, Stop,
                 Drop, OpenHeld, HeldStep, AskRecord, HeldRecord, AskChunks, HeldChunk>;

}  // namespace ckpt::wire::control
