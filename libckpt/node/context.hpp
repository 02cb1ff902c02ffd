// EngineContext: the things that one engine shares with all its jobs.
#pragma once

#include <functional>
#include <memory>

#include "arena/arena_limits.hpp"
#include "base/random.hpp"
#include "base/spawn.hpp"
#include "base/units.hpp"
#include "node/engine_options.hpp"

namespace ckpt::node {

// Whether trainers may capture. An engine that flushes to end grants no more Slots, and takes the
// captures in those that were granted; at its end it takes none: they would be lost silently.
enum class CapturePermission : std::uint8_t { granted, finished, refused };

struct EngineContext {
  asio::any_io_executor executor;
  Seams seams;
  EngineOptions options;
  arena::MemoryBudget budget;
  Random random;  // For session ids; seeded by options.boot.
  std::uint64_t jobs_opened = 0;
  CapturePermission captures = CapturePermission::granted;

  void spawn(asio::awaitable<void> work) { run_detached(executor, std::move(work)); }
  std::uint64_t chunk_bytes() const {
    return options.chunk_bytes != 0 ? options.chunk_bytes : default_chunk_bytes;
  }
};

// Told of the bytes of each Chunk that came into a Slot and was verified there.
using BytesVerified = std::function<void(std::uint64_t bytes)>;

// Held by the engine and by each of its jobs.
using SharedContext = std::shared_ptr<EngineContext>;

}  // namespace ckpt::node
