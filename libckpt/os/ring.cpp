#include "os/ring.hpp"

#include <liburing.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/assert.hpp"
#include "base/units.hpp"
#include "os/storage_error.hpp"
#include "os/thread_settings.hpp"

namespace ckpt::os {

namespace {

// The tag of the eventfd's read. No request has it: generations use the upper half.
constexpr std::uint64_t wakeup_tag = ~std::uint64_t{0};

std::uint64_t tag_of(std::uint32_t index, std::uint32_t generation) {
  return (static_cast<std::uint64_t>(generation) << 32) | index;
}

bool has_all_verbs(io_uring* ring) {
  io_uring_probe* probe = io_uring_get_probe_ring(ring);
  if (probe == nullptr) return false;
  bool complete = true;
  for (const int verb : {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_FSYNC, IORING_OP_FALLOCATE}) {
    complete = complete && io_uring_opcode_supported(probe, verb) != 0;
  }
  io_uring_free_probe(probe);
  return complete;
}

}  // namespace

Result<std::unique_ptr<Ring>> Ring::open(DiskPriority priority, unsigned depth) {
  std::unique_ptr<Ring> ring(new Ring(priority, depth));
  CKPT_CHECK(ring->start());
  return ring;
}

Ring::Ring(DiskPriority priority, unsigned depth)
    : priority_(priority), depth_(depth), places_(depth) {
  CKPT_ASSERT(depth > 0);
  for (std::uint32_t index = 0; index < depth; ++index) free_places_.push_back(index);
}

Status Ring::start() {
  auto ring = std::make_unique<io_uring>();
  // One more entry than requests, for the eventfd's permanent read.
  const int error = io_uring_queue_init(depth_ + 1, ring.get(), 0);
  if (error < 0) {
    return fail(Errc::unsupported, "set up io_uring", {-error, std::generic_category()});
  }
  ring_ = std::move(ring);
  if (!has_all_verbs(ring_.get())) {
    return fail(Errc::unsupported, "set up io_uring: this kernel's is too old");
  }
  wakeup_ = Fd(::eventfd(0, EFD_CLOEXEC));
  if (wakeup_.number() < 0) return storage_failure(errno, "make the eventfd of the ring");
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
  return {};
}

Ring::~Ring() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    thread_.join();
  }
  if (ring_) io_uring_queue_exit(ring_.get());
}

void Ring::wake() {
  const std::uint64_t one = 1;
  // It fails only when the counter is full, and then the thread is awake.
  (void)!::write(wakeup_.number(), &one, sizeof one);
}

void Ring::submit(RingRequest request) {
  CKPT_ASSERT(request.completion != nullptr);
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    CKPT_ASSERT(!stopping_);
    if (queue_.size() >= ring_queue_max) {
      request.completion->complete(-EBUSY);
      return;
    }
    was_empty = queue_.empty();
    queue_.push_back(std::move(request));
  }
  if (was_empty) wake();
}

void Ring::run() {
  set_disk_thread("ckptd-ring", priority_);
  std::vector<Reaped> reaped;
  reaped.reserve(depth_ + 1);
  while (true) {
    arm_wakeup();
    take_queue();
    const bool is_idle = free_places_.size() == depth_ && waiting_begin_ == waiting_.size();
    if (has_seen_stop_ && is_idle) return;
    const int submitted = io_uring_submit_and_wait(ring_.get(), 1);
    reap(reaped);
    if (submitted < 0) {
      CKPT_ASSERT(submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY);
      // The kernel is short of memory. Entries it did not take stay in the submission queue.
      if (reaped.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (const Reaped& one : reaped) act(one);
  }
}

void Ring::arm_wakeup() {
  if (wakeup_armed_) return;
  io_uring_sqe* entry = io_uring_get_sqe(ring_.get());
  if (entry == nullptr) return;  // Full: the submission below makes room.
  io_uring_prep_read(entry, wakeup_.number(), &wakeup_count_, sizeof wakeup_count_, 0);
  io_uring_sqe_set_data64(entry, wakeup_tag);
  wakeup_armed_ = true;
}

void Ring::take_queue() {
  while (!free_places_.empty()) {
    if (waiting_begin_ == waiting_.size()) {
      waiting_.clear();
      waiting_begin_ = 0;
      const std::lock_guard lock(mutex_);
      waiting_.swap(queue_);
      has_seen_stop_ = stopping_;
    }
    if (waiting_.empty()) return;
    const std::uint32_t index = free_places_.back();
    free_places_.pop_back();
    Place& place = places_[index];
    CKPT_ASSERT(!place.is_busy);
    place.request = std::move(waiting_[waiting_begin_++]);
    place.done = 0;
    place.retries = 0;
    place.is_busy = true;
    prepare(index);
  }
}

void Ring::prepare(std::uint32_t index) {
  Place& place = places_[index];
  const RingRequest& request = place.request;
  ++place.generation;
  io_uring_sqe* entry = io_uring_get_sqe(ring_.get());
  if (entry == nullptr) {
    // Happens only after a refused submission: a submitted queue has room for every request.
    (void)io_uring_submit(ring_.get());
    entry = io_uring_get_sqe(ring_.get());
  }
  if (entry == nullptr) {
    finish(index, -EBUSY);
    return;
  }
  const std::uint64_t left = request.bytes - place.done;
  const auto length = static_cast<unsigned>(std::min(left, ring_submission_bytes_max));
  const std::uint64_t offset = request.offset + place.done;
  switch (request.verb) {
    case RingVerb::read:
      io_uring_prep_read(entry, request.fd, request.address + place.done, length, offset);
      break;
    case RingVerb::write:
      io_uring_prep_write(entry, request.fd, request.address + place.done, length, offset);
      // Background writes yield to others; reads do not: somebody waits for a restore.
      if (priority_ == DiskPriority::background) entry->ioprio = 3 << 13;
      break;
    case RingVerb::sync_data:
      io_uring_prep_fsync(entry, request.fd, IORING_FSYNC_DATASYNC);
      break;
    case RingVerb::allocate:
      io_uring_prep_fallocate(entry, request.fd, 0, static_cast<off_t>(request.offset),
                              static_cast<off_t>(request.bytes));
      break;
  }
  io_uring_sqe_set_data64(entry, tag_of(index, place.generation));
}

void Ring::reap(std::vector<Reaped>& reaped) {
  reaped.clear();
  io_uring_cqe* entry = nullptr;
  unsigned head = 0;
  unsigned count = 0;
  io_uring_for_each_cqe(ring_.get(), head, entry) {
    reaped.push_back(Reaped{io_uring_cqe_get_data64(entry), entry->res});
    ++count;
  }
  io_uring_cq_advance(ring_.get(), count);
}

void Ring::act(const Reaped& reaped) {
  if (reaped.tag == wakeup_tag) {
    wakeup_armed_ = false;
    return;
  }
  const auto index = static_cast<std::uint32_t>(reaped.tag);
  CKPT_ASSERT(index < places_.size());
  Place& place = places_[index];
  if (!place.is_busy || tag_of(index, place.generation) != reaped.tag) return;  // Stale.
  std::int64_t final_result = 0;
  if (advance(place, reaped.result, final_result)) {
    finish(index, final_result);
  } else {
    prepare(index);
  }
}

bool Ring::advance(Place& place, int result, std::int64_t& final_result) {
  const RingRequest& request = place.request;
  const bool moves_bytes = request.verb == RingVerb::read || request.verb == RingVerb::write;
  // A sync is never repeated, whatever it returns: a second one may hide the loss that the first
  // one saw.
  const bool may_repeat = request.verb != RingVerb::sync_data;
  if ((result == -EINTR || result == -EAGAIN) && may_repeat) {
    final_result = result;
    return ++place.retries > ring_retries_max;
  }
  if (result < 0 || !moves_bytes) {
    final_result = result;
    return true;
  }
  const std::uint64_t left = request.bytes - place.done;
  CKPT_ASSERT(static_cast<std::uint64_t>(result) <= left);
  auto step = static_cast<std::uint64_t>(result);
  if (request.is_direct && step < left) step = step / page_bytes * page_bytes;
  place.done += step;
  final_result = static_cast<std::int64_t>(place.done);
  // No progress: the end of the file, or a device that takes no more.
  return step == 0 || place.done == request.bytes;
}

void Ring::finish(std::uint32_t index, std::int64_t result) {
  Place& place = places_[index];
  CKPT_ASSERT(place.is_busy);
  const std::unique_ptr<Completion> completion = std::move(place.request.completion);
  place.request = RingRequest{};  // Releases the descriptor before the completion runs.
  place.is_busy = false;
  free_places_.push_back(index);
  completion->complete(result);
}

}  // namespace ckpt::os
