#include "device/cuda_run_state.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/assert.hpp"

namespace ckpt::device {

void CudaRunState::forget_failure() {
  CKPT_ASSERT(phase_ == Phase::idle);
  failure_.reset();
  refusals_in_a_row_ = 0;
}

void CudaRunState::begin() {
  CKPT_ASSERT(phase_ == Phase::idle);
  phase_ = Phase::running;
  queue_.runs.push_back(&work_);
}

void CudaRunState::fail_with(Error error) {
  if (error.code() == Errc::unavailable && !queue_.lost) queue_.lost = error;
  if (!failure_) failure_ = std::move(error);
}

bool CudaRunState::has_ended(CUresult answer, const char* attempted) {
  if (is_answer(answer)) {
    refusals_in_a_row_ = 0;
    return answer == CUDA_SUCCESS;
  }
  fail_with(queue_.driver.check(answer, attempted).error());
  if (!queue_.lost && ++refusals_in_a_row_ > CudaQueue::errors_in_a_row_max)
    queue_.lost = *failure_;
  return queue_.lost.has_value();
}

void CudaRunState::begin_end() {
  CKPT_ASSERT(phase_ == Phase::running);
  phase_ = Phase::ending;
  std::erase(queue_.runs, &work_);
  queue_.changed.notify_all();
}

void CudaRunState::finish(Lock& lock, CopyListener& listener, Status status) {
  CKPT_ASSERT(phase_ == Phase::ending);
  lock.unlock();
  listener.run_ended(std::move(status));
  lock.lock();
  phase_ = Phase::idle;
  queue_.changed.notify_all();
}

Status CudaRunState::wait_for_end(Lock& lock) {
  const auto deadline = std::chrono::steady_clock::now() + gpu_fence_deadline;
  const bool has_ended = queue_.changed.wait_until(lock, deadline, [&] { return !is_running(); });
  if (has_ended) return {};
  return fail(expired());
}

Status CudaRunState::wait_idle(Lock& lock, Deadline deadline) {
  const bool has_ended = queue_.changed.wait_until(lock, deadline, [&] { return is_idle(); });
  if (has_ended) return {};
  return fail(expired());
}

Error CudaRunState::expired() const {
  return Error(Errc::unavailable, fmt::format("the GPU's {} did not end in time", content_));
}

}  // namespace ckpt::device
