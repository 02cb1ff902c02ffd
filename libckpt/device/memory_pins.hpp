// MemoryPins: the memory of this process that is pinned for its GPUs, and keeps it mapped
// meanwhile.
//
//   held --in the background--> pinned --its last user lets go--> unpinned --> unmapped
//
// Pinning takes about a tenth of a second per GiB, so a separate thread, `ckpt-pin`, does it and
// nothing else waits for it. Memory that the driver refuses stays usable, by a slower path.
//
// Invariants: memory is never unmapped while it is pinned. Memory that the driver fails to unpin
//             stays mapped for the life of the process.
// Threads: any. Lifetime: shared by everything that holds memory in it; the Pinner only until
//          stop().
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

// Pinner: pins through one driver. Called without any lock, from one thread at a time.
class Pinner {
 public:
  virtual ~Pinner() = default;
  // Errors: exhausted, io; then nothing is pinned.
  virtual Status pin(std::span<std::byte> memory) = 0;
  // False: the driver did not release all of it, which must then stay mapped.
  virtual bool unpin(std::span<std::byte> memory) = 0;
};

class MemoryPins : public std::enable_shared_from_this<MemoryPins> {
 public:
  MemoryPins() = default;
  ~MemoryPins();
  MemoryPins(const MemoryPins&) = delete;
  MemoryPins& operator=(const MemoryPins&) = delete;

  // Keeps `mapping`, which owns `bytes`, and pins them once there is a Pinner. After the last copy
  // of the returned pointer is gone, they are unpinned and the mapping is released.
  std::shared_ptr<const void> hold(std::span<std::byte> bytes, std::shared_ptr<const void> mapping);

  // From now on, held memory is pinned. `pinner` outlives stop().
  void start(Pinner& pinner);
  // Unpins everything and pins nothing any more. No copy into it may be under way. Idempotent.
  void stop();

  bool has_pinner() const;  // False: this process uses no GPU, or not yet.
  // Returns true if `bytes` are the beginning of memory that is pinned as a whole.
  bool is_pinned(std::span<const std::byte> bytes) const;
  // Waits until no held memory waits to be pinned, or the deadline. Errors: unavailable.
  Status wait_settled(Deadline deadline) const;

 private:
  enum class State : std::uint8_t { waiting, pinning, pinned, refused };
  struct HeldRange {
    std::span<std::byte> bytes;
    std::shared_ptr<const void> mapping;
    State state = State::waiting;
    bool is_let_go = false;
  };

  void let_go(std::uint64_t id);
  void run();
  bool step(std::unique_lock<std::mutex>& lock);  // Returns false if there was nothing to do.
  void pin(std::unique_lock<std::mutex>& lock, std::uint64_t id);
  void unpin(std::unique_lock<std::mutex>& lock, std::uint64_t id);
  void log_refused(const Error& error);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::uint64_t, HeldRange> held_;
  std::uint64_t next_id_ = 0;
  Pinner* pinner_ = nullptr;
  bool is_stopping_ = false;
  bool has_logged_ = false;
  std::thread thread_;
};

}  // namespace ckpt::device
