// A run:
//  1. An event on the trainer's stream; our stream waits for it.
//  2. Batches are queued: the first here, so that no thread of the trainer's waits for room in the
//     stream, and the others by `ckpt-gpu`, two at a time, or all by fence(). An event follows each
//     of them; by fence(), each group of them.
//  3. `ckpt-gpu` polls the events. A batch whose event has completed is in the Slot.
//  4. fence() makes the trainer's stream wait for the last batch's event, which it has recorded.
//  5. When every queued copy has ended, the listener is notified, and the run is idle.
#include "device/cuda_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"

namespace ckpt::device {

namespace {

std::uint64_t largest_batch(const CudaBatches& plan) {
  std::uint64_t bytes = 0;
  for (const CudaBatch& batch : plan.batches) bytes = std::max(bytes, batch.bytes);
  return bytes;
}

// The most that batches queue in one call.
constexpr std::size_t copies_together_max = 1024;

Unexpected captured_error(const char* what) {
  return fail(Errc::unsupported,
              fmt::format("{}: the stream is being captured into a CUDA graph, which would only "
                          "record the copies: call it outside of the capture",
                          what));
}

}  // namespace

CudaRun::CudaRun(CudaQueue& queue, CudaBatches plan, std::size_t slots, CopyListener& listener)
    : queue_(queue),
      plan_(std::move(plan)),
      listener_(listener),
      order_(queue.driver, queue.context),
      state_(queue, *this, "copies"),
      event_of_(plan_.batches.size()),
      half_of_(plan_.batches.size()) {
  std::size_t copies_max = copies_together_max;
  for (const CudaBatch& batch : plan_.batches)
    copies_max = std::max(copies_max, batch.copy_count + batch.gathered_count);
  targets_.reserve(copies_max);
  sources_.reserve(copies_max);
  sizes_.reserve(copies_max);
  {
    const Lock lock(queue_.mutex);
    queue_.batch_bytes_max = std::max(queue_.batch_bytes_max, largest_batch(plan_));
  }
  if (!queue_.identity.check()) return;  // Each start will say so.
  if (!plan_.gathered.empty()) make_table();
  if (plan_.batches.empty()) return;
  if (slots > 0) make_skip(slots);
  if (!skip_ && queue_.is_checked) make_check();
}

// With the context current. The captures do without it if need be.
void CudaRun::make_table() {
  const Lock lock(queue_.mutex);
  auto made = GatherTable::make(queue_.mirrors, gather_table(plan_));
  if (made) {
    table_ = std::move(*made);
  } else if (queue_.gather_trouble.is_first()) {
    log_info("gpu_gather: small tensors are copied without a kernel: {}", made.error().text());
  }
}

void CudaRun::make_check() {
  const Lock lock(queue_.mutex);
  if (!queue_.fingerprint.is_usable()) return;
  auto made = CudaCheck::make(queue_.driver, queue_.mirrors, plan_);
  if (made) {
    check_ = std::move(*made);
  } else if (queue_.check_trouble.is_first()) {
    log_warning("gpu_check: captures are not checked: {}", made.error().text());
  }
}

void CudaRun::make_skip(std::size_t slots) {
  const Lock lock(queue_.mutex);
  if (!queue_.changed_copy.is_usable()) return;
  auto made = CudaSkip::make(queue_.driver, queue_.mirrors, plan_, {slots, queue_.is_checked});
  if (made) {
    skip_ = std::move(*made);
  } else if (queue_.skip_trouble.is_first()) {
    log_info("skip_unchanged: unchanged tensors are copied: {}", made.error().text());
  }
}

CudaRun::~CudaRun() {
  while (!wait_idle(std::chrono::steady_clock::now() + std::chrono::minutes(1))) {
    log_warning("still waiting for copies of a GPU");
  }
  const RelaxedCapture relaxed(queue_.driver);
  const CudaScope scope(queue_.driver, queue_.context);
  const Lock lock(queue_.mutex);
  const bool has_context = queue_.has_context();
  if (has_context)
    for (const CUevent event : events_) (void)queue_.driver.destroy_event(event);
  order_.close(has_context);
  if (check_ && !has_context) check_->forget();
  check_.reset();
  if (skip_ && !has_context) skip_->forget();
  skip_.reset();
  if (table_ && !has_context) table_->forget();
  table_.reset();
}

Status CudaRun::make_events() {
  while (events_.size() < plan_.batches.size()) {
    CUevent event = nullptr;
    CKPT_CHECK(queue_.driver.check(queue_.driver.create_event(&event, CU_EVENT_DISABLE_TIMING),
                                   "create an event"));
    events_.push_back(event);
  }
  return {};
}

Status CudaRun::check_start(const CopyStart& start) {
  if (!queue_.has_context() || queue_.lost) return fail(Error(*queue_.lost));
  CKPT_TRY(const bool is_captured, order_.is_captured(start.stream));
  if (is_captured) return captured_error("save");
  CKPT_CHECK(make_events());
  is_by_ring_ = !queue_.pins.is_pinned(start.slot);
  if (is_by_ring_) CKPT_CHECK(queue_.make_ring());
  return {};
}

Status CudaRun::start(const CopyStart& start) {
  for (const CudaCopy& copy : plan_.zeros) {
    CKPT_ASSERT(copy.slot_offset + copy.bytes <= start.slot.size());
    std::memset(start.slot.data() + copy.slot_offset, 0, copy.bytes);
  }
  if (plan_.batches.empty()) {
    listener_.run_ended({});
    return {};
  }
  const RelaxedCapture relaxed(queue_.driver);
  CKPT_CHECK(queue_.identity.check());
  const CudaScope scope(queue_.driver, queue_.context);
  CKPT_CHECK(scope.status());
  {
    const Lock lock(queue_.mutex);
    CKPT_ASSERT(state_.is_idle());
    CKPT_CHECK(check_start(start));
    slot_ = start.slot;
    next_ = 0;
    ended_ = 0;
    state_.forget_failure();
    is_covered_ = true;
    is_unpaced_ = false;
    // Step 1.
    CKPT_CHECK(order_.follow(queue_.stream, start.stream));
    // From here on the run begins, whatever fails, and end() is called.
    if (skip_) skip_->begin(start.generation, slot_, !is_by_ring_);
    // Step 2.
    if (may_queue()) {
      if (const Status queued = queue_batches(1); !queued) state_.fail_with(queued.error());
    }
    state_.begin();
  }
  queue_.changed.notify_all();
  return {};
}

bool CudaRun::may_queue() {
  if (queue_.queued >= CudaQueue::batches_queued_max) return false;
  if (is_by_ring_ && !queue_.free_half()) return false;
  const std::uint64_t bytes = plan_.batches[next_].bytes;
  return is_unpaced_ || queue_.bucket.take(bytes, std::chrono::steady_clock::now());
}

// On an error, `is_covered_` is false if copies were queued that no event covers.
Status CudaRun::queue_batches(std::size_t count) {
  CKPT_ASSERT(has_left());
  CKPT_ASSERT(count > 0 && count <= plan_.batches.size() - next_);
  const std::size_t last = next_ + count - 1;
  const Copies copies = copies_of(next_, last);
  std::byte* ring_half = nullptr;
  if (is_by_ring_) {
    CKPT_ASSERT(count == 1);
    half_of_[next_] = queue_.free_half().value();
    ring_half = queue_.half(half_of_[next_]);
  }
  CKPT_POINT("gpu.before_batch");
  // Where a thread waits for all of it, there is nothing to let through.
  if (next_ > 0 && !is_unpaced_) CKPT_CHECK(queue_.queue_gap());
  is_covered_ = false;
  const Result<bool> copied = queue_sums(last);
  Status queued;
  if (!copied) queued = fail(Error(copied.error()));
  if (copied && !*copied) queued = queue_copies(copies, ring_half);
  // Also after only a part of a batch: the event shows when that has ended.
  const CUresult recorded = queue_.driver.record_event(events_[last], queue_.stream);
  is_covered_ = recorded == CUDA_SUCCESS;
  if (is_covered_) {
    if (is_by_ring_) queue_.is_half_used[half_of_[next_]] = true;
    for (; next_ <= last; ++next_, ++queue_.queued) event_of_[next_] = last;
  }
  CKPT_CHECK(std::move(queued));
  return queue_.driver.check(recorded, "record an event behind a batch of copies");
}

// True: what has changed is copied with them, and nothing else need be.
Result<bool> CudaRun::queue_sums(std::size_t last) {
  if (skip_) {
    CKPT_ASSERT(last == next_);
    // Behind a fence nothing trains that wants the GPU's cores.
    const unsigned blocks = is_unpaced_ ? CudaFingerprint::blocks_of_a_whole_gpu
                                        : CudaFingerprint::blocks_beside_training;
    return skip_->queue({queue_.fingerprint, queue_.changed_copy, blocks}, last, queue_.stream);
  }
  for (std::size_t batch = next_; check_ && batch <= last; ++batch)
    CKPT_CHECK(check_->queue(queue_.fingerprint, batch, queue_.stream));
  return false;
}

// How many batches from the next one on go into one group behind a fence.
std::size_t CudaRun::count_together(std::uint64_t bytes_max) const {
  std::uint64_t bytes = plan_.batches[next_].bytes;
  std::size_t copies = plan_.batches[next_].copy_count + plan_.batches[next_].gathered_count;
  std::size_t count = 1;
  for (; next_ + count < plan_.batches.size(); ++count) {
    const CudaBatch& batch = plan_.batches[next_ + count];
    bytes += batch.bytes;
    copies += batch.copy_count + batch.gathered_count;
    if (bytes > bytes_max || copies > copies_together_max) break;
  }
  return count;
}

void CudaRun::queue_all_left() {
  is_unpaced_ = true;
  std::uint64_t left = 0;
  for (std::size_t i = next_; i < plan_.batches.size(); ++i) left += plan_.batches[i].bytes;
  const std::uint64_t bytes_max = together_bytes_max(left);
  while (has_left() && !is_by_ring_) {
    // Each is copied in its own way where some may be skipped. There are few then.
    const Status queued = queue_batches(skip_ ? 1 : count_together(bytes_max));
    if (!queued) state_.fail_with(queued.error());
  }
}

Status CudaRun::fence(Stream stream) {
  const RelaxedCapture relaxed(queue_.driver);
  const CudaScope scope(queue_.driver, queue_.context);
  Lock lock(queue_.mutex);
  if (!state_.is_running()) return {};
  if (!queue_.has_context()) return wait_on_host(lock);
  const auto is_captured = order_.is_captured(stream);
  const bool waits_on_gpu = scope.status() && is_captured && !*is_captured && !is_by_ring_;
  if (!waits_on_gpu) return wait_on_host(lock);
  queue_all_left();
  queue_.changed.notify_all();
  if (ended_ == next_ && is_covered_) return {};
  // Step 4.
  if (is_covered_ && order_.precede(events_[next_ - 1], stream)) return {};
  return wait_on_host(lock);
}

// For cases in which the GPU cannot wait: copies through the ring, a graph capture, an earlier
// error. The sources are free when every queued copy has ended.
Status CudaRun::wait_on_host(Lock& lock) {
  is_unpaced_ = true;
  return state_.wait_for_end(lock);
}

Status CudaRun::wait_idle(Deadline deadline) {
  Lock lock(queue_.mutex);
  if (state_.is_running()) is_unpaced_ = true;  // Nobody trains while the host waits.
  return state_.wait_idle(lock, deadline);
}

bool CudaRun::advance(Lock& lock) {
  if (!state_.is_running()) return false;
  if (queue_.lost) state_.fail_with(Error(*queue_.lost));
  const std::size_t ended_before = ended_;
  // Step 3.
  while (ended_ < next_ && has_batch_ended()) {
    if (is_by_ring_) empty_ring(lock);
    check_arrived(lock);
    ++ended_;
    --queue_.queued;
  }
  bool has_moved = ended_ != ended_before;
  if (has_moved && !state_.failure()) report_arrived(lock);
  // Step 2.
  while (has_left() && may_queue()) {
    has_moved = true;
    if (const Status queued = queue_batches(1); !queued) state_.fail_with(queued.error());
  }
  if (ended_ == next_ && !has_left() && (is_covered_ || has_stream_ended())) {
    end(lock);
    has_moved = true;
  }
  return has_moved;
}

bool CudaRun::has_batch_ended() {
  if (queue_.lost) return true;  // Nothing queued will run any more.
  const CUresult result = queue_.driver.query_event(events_[event_of_[ended_]]);
  if (is_answer(result)) return state_.has_ended(result, "copy from the GPU");
  state_.fail_with(queue_.driver.check(result, "copy from the GPU").error());
  // If it is not lost, copies may still be under way, and the stream itself can say.
  return has_stream_ended();
}

bool CudaRun::has_stream_ended() {
  if (queue_.lost) return true;
  return state_.has_ended(queue_.driver.query_stream(queue_.stream), "wait for copies of the GPU");
}

void CudaRun::empty_ring(Lock& lock) {
  const Copies copies = copies_of(ended_, ended_);
  const std::size_t half = half_of_[ended_];
  if (!state_.failure()) {
    lock.unlock();
    const std::byte* from = queue_.half(half);
    for (const auto& part : {copies.by_engine, copies.gathered}) {
      for (const CudaCopy& copy : part) {
        CKPT_ASSERT(copy.slot_offset + copy.bytes <= slot_.size());
        std::memcpy(slot_.data() + copy.slot_offset, from, copy.bytes);
        from += copy.bytes;
      }
    }
    lock.lock();
  }
  queue_.is_half_used[half] = false;
}

void CudaRun::check_arrived(Lock& lock) {
  if ((!check_ && !skip_) || state_.failure() || queue_.lost) return;
  lock.unlock();
  const Status compared =
      skip_ ? skip_->compare(ended_, listener_) : check_->compare(ended_, slot_, listener_);
  lock.lock();
  if (!compared) state_.fail_with(compared.error());
}

void CudaRun::forget_slots() {
  const Lock lock(queue_.mutex);
  CKPT_ASSERT(state_.is_idle());
  if (skip_) skip_->forget_slots();
}

void CudaRun::report_arrived(Lock& lock) {
  const std::size_t strips = plan_.batches[ended_ - 1].strips_end;
  lock.unlock();
  listener_.strips_arrived(strips);
  lock.lock();
}

void CudaRun::end(Lock& lock) {
  // Step 5.
  state_.begin_end();
  const std::optional<Error>& failure = state_.failure();
  if (skip_) skip_->end(!failure);
  state_.finish(lock, listener_, failure ? Status(fail(Error(*failure))) : Status());
}

}  // namespace ckpt::device
