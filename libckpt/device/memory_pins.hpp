// MemoryPins: which memory of this process is pinned for its GPUs, and what keeps it mapped.
//
//   held --in the background--> pinned --its last user lets go--> unpinned --> unmapped
//
// Pinning takes about a tenth of a second for a GiB, so a thread of its own does it, `ckpt-pin`:
// nothing else waits for it. What the driver refuses stays usable, by a slower way.
//
// Invariant: memory is never unmapped while it is pinned: what the driver does not let go of stays
//            mapped as long as the process lives.
// Threads:   any. Lifetime: shared by all that hold memory in it; the Pinner only until stop().
#pragma once

#include <ckpt/result.hpp>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "device/device.hpp"

namespace ckpt::device {

// Pinner: how one driver pins. Called without any lock, from one thread at a time.
class Pinner {
 public:
  virtual ~Pinner() = default;
  // Errors: exhausted, io; then nothing of it is pinned.
  virtual Status pin(std::span<std::byte> memory) = 0;
  // False: the driver does not let go of all of it, which must then stay mapped.
  virtual bool unpin(std::span<std::byte> memory) = 0;
};

class MemoryPins : public std::enable_shared_from_this<MemoryPins> {
 public:
  MemoryPins() = default;
  ~MemoryPins();
  MemoryPins(const MemoryPins&) = delete;
  MemoryPins& operator=(const MemoryPins&) = delete;

  // Keeps `mapping`, which owns `bytes`, and has them pinned from when there is a Pinner. As long
  // as a copy of the answer lives; after that they are unpinned, and the mapping goes.
  std::shared_ptr<const void> hold(std::span<std::byte> bytes, std::shared_ptr<const void> mapping);

  // From now on what is held is pinned. `pinner` outlives stop().
  void start(Pinner& pinner);
  // Unpins all, and pins nothing any more. Nothing may still be copied into it. Idempotent.
  void stop();

  // Whether `bytes` are the beginning of something that is pinned as a whole.
  bool is_pinned(std::span<const std::byte> bytes) const;
  // Until nothing that is held still waits to be pinned, or the deadline. Errors: unavailable.
  Status wait_settled(Deadline deadline) const;

 private:
  enum class State : std::uint8_t { waiting, pinning, pinned, refused };
  struct Held {
    std::span<std::byte> bytes;
    std::shared_ptr<const void> mapping;
    State state = State::waiting;
    bool is_let_go = false;
  };

  void let_go(std::uint64_t id);
  void run();
  bool step(std::unique_lock<std::mutex>& lock);  // False: there was nothing to do.
  void pin(std::unique_lock<std::mutex>& lock, std::uint64_t id);
  void unpin(std::unique_lock<std::mutex>& lock, std::uint64_t id);
  void tell_refused(const Error& error);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::uint64_t, Held> held_;
  std::uint64_t next_id_ = 0;
  Pinner* pinner_ = nullptr;
  bool is_stopping_ = false;
  bool has_told_ = false;
  std::thread thread_;
};

}  // namespace ckpt::device
