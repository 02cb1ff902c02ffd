// Flusher: limits and orders the writes of one node to storage.
//
// Only one attempt to store a step is written at a time, and one may wait. A newer step replaces
// the waiting one, which ends with `cancelled` and is counted. An attempt writes a few ranks at
// once: a parallel file system keeps one file on one server, and waits for a sync cost nothing
// where another rank has something to write.
//
// A write that hangs in the kernel cannot be cancelled: it uses the Slot's pages until it ends.
// `status` reports it, it holds up no training, and stop() waits for it only until its deadline.
//
// Threads: one executor.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/clock.hpp"
#include "base/signal.hpp"
#include "base/stop_gate.hpp"
#include "base/throttle.hpp"
#include "storage/step_attempt.hpp"

namespace ckpt::flush {

struct FlusherOptions {
  std::shared_ptr<Throttle> throttle;  // Null: no limit.
  Compute* compute = nullptr;          // Computes the checksums.
};

// WriteWatch: callbacks to the owner of a shard's write. Empty: no call.
struct WriteWatch {
  std::function<bool()> is_wanted;   // Before each Chunk: false ends the write.
  std::function<void()> progressed;  // After each Chunk, and each file.
};

struct FlusherStatus {
  std::string writing;  // Where the attempt lies that is being written; empty: none.
  std::string waiting;
  Time since{};  // The start of that write.
  std::uint64_t bytes_written = 0;
  std::uint64_t bytes_shared = 0;  // With files stored before; not written.
  std::uint64_t shards_written = 0;
  std::uint64_t shards_skipped = 0;  // Replaced by a newer step.
  std::uint64_t failed = 0;
};

class Flusher {
 public:
  // Ranks that are written at once. Each has many requests in flight.
  static constexpr int ranks_in_flight = 4;

  Flusher(Clock& clock, FlusherOptions options);
  ~Flusher();
  Flusher(const Flusher&) = delete;
  Flusher& operator=(const Flusher&) = delete;

  // Puts one shard into `target`, which has begun. The source's memory must live until this ends.
  // Errors: cancelled (replaced by a newer step, unwanted, give_up, stop), and those of
  // storage::write_shard.
  Task<format::ShardFlushed> write_shard(storage::ShardToWrite source, storage::StepAttempt target,
                                         WriteWatch watch = {});

  // Ends writes into this attempt at the next Chunk, and those that wait for it.
  void give_up(const storage::StepAttempt& target);

  FlusherStatus status() const;
  // Ends everything, and waits until nothing uses a Slot any more. Errors: unavailable (deadline).
  Task<void> stop(Time deadline);

 private:
  struct Attempt;
  struct State;

  std::shared_ptr<State> state_;
};

}  // namespace ckpt::flush
