#include "capture_judge.hpp"

#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace ckpt::python {

namespace nb = nanobind;

struct CaptureJudge::State {
  // None: it is over.
  std::optional<Step> next() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return copied || is_over; });
    if (is_over) return std::nullopt;
    return std::exchange(copied, std::nullopt);
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Step> copied;
  std::thread::id thread;
  bool is_over = false;
  bool has_ended = false;
};

CaptureJudge::CaptureJudge() : state_(std::make_shared<State>()) {}

CaptureJudge::~CaptureJudge() {
  end();
}

void CaptureJudge::start(nb::callable judge) {
  process_ = ::getpid();
  std::thread thread(run, state_, std::move(judge));
  {
    const std::lock_guard lock(state_->mutex);
    state_->thread = thread.get_id();
  }
  thread.detach();
}

void CaptureJudge::add(Step copied) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->copied = copied;
  }
  state_->changed.notify_all();
}

void CaptureJudge::end() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_over = true;
  }
  state_->changed.notify_all();
}

void CaptureJudge::join() {
  if (process_ != ::getpid()) return;  // Never started, or in a fork, which has no such thread.
  std::unique_lock lock(state_->mutex);
  if (state_->thread == std::this_thread::get_id()) return;
  state_->changed.wait(lock, [&] { return state_->has_ended; });
}

void CaptureJudge::run(std::shared_ptr<State> state, nb::callable judge) {
  ::pthread_setname_np(::pthread_self(), "ckpt-written");
  while (const std::optional<Step> step = state->next()) {
    const nb::gil_scoped_acquire acquire;
    try {
      judge(number(*step));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("libckpt judges a capture");
    }
  }
  {
    const nb::gil_scoped_acquire acquire;
    judge.reset();
  }
  {
    const std::lock_guard lock(state->mutex);
    state->has_ended = true;
  }
  state->changed.notify_all();
}

}  // namespace ckpt::python
