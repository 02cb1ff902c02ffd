// EngineOptions: what an engine is given: its limits, its seams, and the requests of trainers.
#pragma once

#include <ckpt/options.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "arena/slot_memory.hpp"
#include "base/clock.hpp"
#include "base/compute.hpp"
#include "format/agreement.hpp"
#include "os/file_system.hpp"
#include "wire/connection.hpp"
#include "wire/control_message.hpp"
#include "wire/handshake.hpp"

namespace ckpt::node {

namespace control = wire::control;

enum class SessionId : std::uint64_t {};

struct AttachRequest : control::Attach {
  std::string secret;        // The bytes of its secret_file; empty: no peers.
  std::int64_t process = 0;  // Identity of the trainer's process (its pid); 0: not known.
  std::int64_t killed = 0;   // An older trainer of the rank, which was stopped; 0: none.
};

struct Attached {
  SessionId session{};
  format::RunId run;
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
  Duration verify_every = std::chrono::minutes(10);         // All that lies in memory; 0: never.
  bool verify_stored = false;                               // And the newest files of our ranks.
  bool require_mount = false;  // No directory on the root file system: its own is not mounted.
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

}  // namespace ckpt::node
