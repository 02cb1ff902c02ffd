// Ring: one io_uring and the thread that owns it.
//
//   submit() from any thread --> queue --eventfd--> thread: drain queue, submit, reap --> complete
//
// Invariants: a negative result is an error. A short result is continued with the rest. The
//             completion queue is advanced before its entries are handled. A completion with an
//             outdated generation is dropped. Completions are collected first and run later, on the
//             waiter's executor.
//
// Threads: submit from any. Lifetime: the destructor waits for every submitted request.
// Memory:   a request's bytes, and its descriptor, must live until its completion.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <ckpt/result.hpp>

#include "os/completion.hpp"
#include "os/disk_threads.hpp"
#include "os/fd.hpp"

struct io_uring;
struct io_uring_sqe;

namespace ckpt::os {

// Keeps an NVMe drive busy with 1-8 MiB requests, which a queue depth of 32-64 does.
inline constexpr unsigned ring_depth = 64;
// Requests that wait for a place in the ring.
inline constexpr std::size_t ring_queue_max = 4096;
// How often EINTR and EAGAIN of one request are retried before they count as its error.
inline constexpr int ring_retries_max = 100;
// The most bytes of one submission; Linux itself stops at 2 GiB - 4 KiB.
inline constexpr std::uint64_t ring_submission_bytes_max = 256u << 20;

enum class RingVerb : std::uint8_t { read, write, sync_data, allocate };

struct RingRequest {
  RingVerb verb = RingVerb::read;
  int fd = -1;
  bool is_direct = false;  // After a short result, continues at the last 4 KiB boundary.
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::byte* address = nullptr;            // Only reads write to it.
  std::shared_ptr<const void> keep_alive;  // The descriptor's owner.
  std::unique_ptr<Completion> completion;  // Receives the bytes done, or a negative errno.
};

class Ring {
 public:
  // Errors: unsupported (io_uring is refused here, or is too old).
  static Result<std::unique_ptr<Ring>> open(DiskPriority priority, unsigned depth = ring_depth);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Always completes; a full queue completes with -EBUSY. A read that reaches the end of the file
  // completes with the bytes before it.
  void submit(RingRequest request);

 private:
  struct Place {  // One request in the kernel.
    RingRequest request;
    std::uint64_t done = 0;
    std::uint32_t generation = 0;
    int retries = 0;
    bool is_busy = false;
  };
  struct Reaped {
    std::uint64_t tag = 0;
    int result = 0;
  };

  Ring(DiskPriority priority, unsigned depth);
  Status start();
  void wake();
  void run();
  void arm_wakeup();
  void take_queue();
  void prepare(std::uint32_t index);
  void reap(std::vector<Reaped>& reaped);
  void act(const Reaped& reaped);
  // Returns true when the request is over, with its result.
  bool advance(Place& place, int result, std::int64_t& final_result);
  void finish(std::uint32_t index, std::int64_t result);

  const DiskPriority priority_;
  const unsigned depth_;
  Fd wakeup_;
  std::thread thread_;

  std::mutex mutex_;  // Guards these two.
  std::vector<RingRequest> queue_;
  bool stopping_ = false;

  // Owned by the ring's thread.
  std::unique_ptr<io_uring> ring_;
  std::vector<Place> places_;
  std::vector<std::uint32_t> free_places_;
  std::vector<RingRequest> waiting_;  // Taken from the queue, first at `waiting_begin_`.
  std::size_t waiting_begin_ = 0;
  std::uint64_t wakeup_count_ = 0;
  bool wakeup_armed_ = false;
  bool has_seen_stop_ = false;
};

}  // namespace ckpt::os
