// Engine: one node's part of libckpt: it owns the Slots, replicates, flushes, agrees and recovers.
//
// The daemon runs one, the embedded mode runs one inside the trainer, and the simulator runs one
// per simulated node: the same coroutines over other seams. A trainer is a Session; what it may ask
// for is the part of this header that takes a SessionId.
//
// Threads:   one executor; every call and every SessionEvents callback happens on it.
// Lifetime:  stop() first; the destructor asserts that nothing is in flight unless the executor's
//            context was destroyed before it (a simulated kill).
#pragma once

#include <ckpt/options.hpp>
#include <ckpt/outcome.hpp>
#include <ckpt/stats.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arena/slot_memory.hpp"
#include "base/clock.hpp"
#include "base/compute.hpp"
#include "format/agreement.hpp"
#include "format/manifest.hpp"
#include "format/shard_record.hpp"
#include "node/session_events.hpp"
#include "os/file_system.hpp"
#include "wire/connection.hpp"
#include "wire/handshake.hpp"

namespace ckpt::node {

enum class SessionId : std::uint64_t {};

// Continuation: a trainer that goes on after its daemon was started again: no restore, same
// timeline.
struct Continuation {
  std::uint64_t start_id = 0;
  std::uint64_t timeline = 0;
};

// What the trainer tells once, at the start.
struct AttachRequest {
  std::string job;
  std::string dir;  // Empty: memory only.
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::vector<Node> nodes;  // Never empty here: one node is a list of one.
  std::string node;         // Ours, in `nodes`.
  std::uint64_t incarnation = 0;
  Interval save_mem_interval;
  Interval save_storage_interval;
  std::uint32_t max_ckpt_num = 0;
  std::uint32_t replicas = 2;
  std::uint32_t own_slots = 0;
  std::uint64_t flush_rate = 0, replica_rate = 0;  // Bytes per second; 0: no limit.
  std::string secret;                              // The secret's bytes; empty: no peers.
  std::int64_t process = 0;  // Identity of the trainer's process (its pid); 0: not known.
  std::optional<Continuation> continuation;  // None: it starts fresh or restores.
};

struct Attached {
  SessionId session{};
  format::RunId run;
};

// A capture that is complete in its Slot; from here on the trainer may die.
struct Filled {
  std::uint32_t slot = 0;
  Step step{};
  std::uint32_t layout_version = 1;
  std::uint64_t blob_bytes = 0;
  std::vector<format::Extent> blobs;
  std::vector<std::string> blob_names;
  std::uint64_t chunk_bytes = 0;
  std::vector<Crc32> chunk_crcs;  // Empty: the engine computes them before it seals.
};

// Steps that a trainer has measured, without its time in calls of libckpt.
struct StepTime {
  std::uint32_t steps = 1;
  Duration time{0};  // Of all of them.
  bool during_capture = false;
};

struct EngineOptions {
  std::string name;                 // For logs; the node's name comes with each job.
  std::uint64_t boot = 0;           // Random: changes when memory is lost.
  std::uint64_t memory_budget = 0;  // Bytes.
  std::uint64_t chunk_bytes = 0;    // 0: default_chunk_bytes.
  std::string listen_address;       // Overrides the node's own address; empty: as the job says.
  Duration heartbeat_interval = std::chrono::milliseconds(500);
  Duration peer_lost_after = std::chrono::milliseconds(2'500);
  Duration restore_collect_deadline = std::chrono::seconds(60);
  Duration job_idle_limit = std::chrono::hours(2);          // Memory of a job without trainers.
  Duration flush_stalled_after = std::chrono::seconds(60);  // Then another node writes the part.
  std::uint32_t restores_without_progress_max = 3;          // Then the step is suspect.
  std::uint64_t manifest_bytes_max = format::manifest_bytes_max;  // Of a step that can be stored.
  wire::MakeNonce make_nonce = wire::random_bytes;  // The simulator draws them from its seed.
};

// LineSeams: where control connections live. On a thread of their own a busy engine never looks
// dead. All outlive the engine's last coroutine.
struct LineSeams {
  asio::any_io_executor executor;
  Clock* clock = nullptr;
  wire::Network* network = nullptr;
};

struct Seams {
  Clock& clock;
  arena::MemorySource& memory;
  os::FileSystem& files;
  wire::Network& network;
  Compute* compute = nullptr;                     // Null: the engine's own thread hashes.
  std::optional<LineSeams> lines = std::nullopt;  // None: on the engine's own executor.
};

class Engine {
 public:
  Engine(asio::any_io_executor executor, Seams seams, EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Errors: invalid_argument (another job's directory, a rank beyond the world, a node not listed,
  //         a lower incarnation than seen), io (the directory).
  // An older session of the same job and rank is fenced. `events` must outlive the session.
  Task<Attached> attach(AttachRequest request, SessionEvents& events);
  // Whether a job that is open here would refuse it; errors: those of attach.
  Status check_attach(const AttachRequest& request) const;
  // Makes (or keeps) the Slots for this layout in the background, answered by slots_ready or
  // slots_failed. Slots already granted or filled of an older version stay valid.
  Status set_layout(SessionId session, format::Layout layout);

  // The capture: begin when the trainer takes a granted Slot, then filled, or abandon.
  Status begin(SessionId session, std::uint32_t slot, Step step);
  Status arrived(SessionId session, std::uint32_t slot, std::uint64_t bytes);
  Status filled(SessionId session, Filled filled);
  Status abandon(SessionId session, std::uint32_t slot);
  Status skipped(SessionId session, Step step);
  // How fast it trains: flushes and copies give way when that slows down.
  Status step_time(SessionId session, StepTime steps);

  // Slots are granted only after `begun`: a session either restores or starts fresh, with all
  // ranks. Answered by begun. `ask` is the caller's number of it, which the answers have too.
  Status start_fresh(SessionId session, std::uint64_t ask);
  // Answered by restore_offered (any number of times), then by begun.
  Status ask_restore(SessionId session, std::uint64_t ask, std::optional<Step> wanted);
  // Of the newest offer. ok: verified and copied. corruption: this copy is bad, offer another.
  Status restore_result(SessionId session, std::uint64_t offer, Status result);
  Status restored_ok(SessionId session, Step step);
  // Stores the newest committed step that is not older than `step`, whatever the interval says.
  Status flush(SessionId session, Step step);

  // How the session's job stands: answered by status_told, with the job of status_json.
  Status ask_status(SessionId session);

  // Flushes the newest committed step (with a directory), then frees the job's memory here.
  Status close(SessionId session, Duration deadline);
  // The trainer is proven dead, or its process let go of the memory: fillings are abandoned, what
  // is sealed stays. Its Slots may be given to the next session of the rank.
  void detach(SessionId session);

  // For the command line. The text is JSON (docs/protocol.md, "Status").
  std::string status_json() const;
  std::string recover_json(const std::string& job) const;  // Why each step was chosen or rejected.
  Status drop(const std::string& job);  // Errors: not_found, unavailable (in use).
  bool is_idle() const;                 // No job holds memory, no trainer.

  // Before the end: no more Slots are granted, and what is captured is brought to storage, as far
  // as it has a directory and all its ranks; then captures are refused. Errors: unavailable (the
  // deadline), io (`failures_max` attempts of a job failed); all then goes on as before.
  Task<void> flush(Duration deadline, std::uint32_t failures_max);
  // What each job has in memory and on storage, as JSON (docs/protocol.md, "Stop").
  std::string held_json() const;
  // Ends all work. Errors: unavailable (the deadline).
  Task<void> stop(Duration deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ckpt::node
