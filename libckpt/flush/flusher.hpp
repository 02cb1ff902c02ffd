// Flusher: bounds and orders what one node writes to storage.
//
// One attempt (a work directory) is written at a time and one may wait; a newer step takes the
// place of the one that waits, which then ends with `cancelled` and is counted. Within an attempt,
// the node's ranks are written one after another: one shard alone keeps the disk busy.
//
// A write that hangs in the kernel cannot be taken back: the Slot's pages belong to it until it
// ends. What hangs is told by `status`, holds up no training, and is waited for by stop() only
// until its deadline.
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
#include "storage/member_writer.hpp"

namespace ckpt::flush {

struct FlusherOptions {
  std::shared_ptr<Throttle> throttle;  // Null: no limit.
  Compute* compute = nullptr;          // Where the checksums are computed.
};

// WriteWatch: what the owner of a shard's write hears of it, and may say. Empty: nothing.
struct WriteWatch {
  std::function<bool()> is_wanted;   // Before each Chunk: false ends the write.
  std::function<void()> progressed;  // After each Chunk, and each file.
};

struct FlusherStatus {
  std::string writing;  // The work directory in flight; empty: none.
  std::string waiting;
  Time since{};  // When the one in flight began.
  std::uint64_t bytes_written = 0;
  std::uint64_t shards_written = 0;
  std::uint64_t shards_skipped = 0;  // Given up for a newer step.
  std::uint64_t failed = 0;
};

class Flusher {
 public:
  Flusher(os::FileSystem& files, Clock& clock, FlusherOptions options);
  ~Flusher();
  Flusher(const Flusher&) = delete;
  Flusher& operator=(const Flusher&) = delete;

  // Writes one shard into `work_directory`, a path as Site::at makes it. The source's memory must
  // live until this ends. Errors: cancelled (a newer step took its place, unwanted, give_up, stop),
  // and those of storage::write_shard.
  Task<format::ShardFlushed> write_shard(storage::ShardSource source, std::string work_directory,
                                         WriteWatch watch = {});

  // Ends what is written into this directory or waits for it, at the next Chunk.
  void give_up(const std::string& work_directory);

  FlusherStatus status() const;
  // Ends all, and waits until nothing touches a Slot any more. Errors: unavailable (deadline).
  Task<void> stop(Time deadline);

 private:
  struct Attempt;
  struct State;

  std::shared_ptr<State> state_;
};

}  // namespace ckpt::flush
