#include "node/last_look.hpp"

#include <utility>

#include "base/log.hpp"
#include "base/within.hpp"

namespace ckpt::node {

using enum agree::LastLookState;

namespace {

// As long as a start waits for a second place.
constexpr Duration look_patience = std::chrono::seconds(5);

}  // namespace

void LastLook::update(bool is_end) {
  const bool is_stored = !facts_.directory.empty() && facts_.committed && facts_.durable &&
                         *facts_.durable >= *facts_.committed;
  // An answer holds for the step that it was for.
  if (!is_stored || (about_ && about_ != facts_.durable)) {
    state_ = unasked;
    about_.reset();
    is_asked_ = false;
  }
  if (!is_end || !is_stored) {
    // Training goes on, and may last: the next end asks again. A step that is gone is
    // not forgotten, since a flush of it follows.
    if (state_ != gone) state_ = unasked;
    is_asked_ = false;
    return;
  }
  const format::StepId at = *facts_.durable;
  if (has_been_stored_again(at)) is_asked_ = false;
  if (std::exchange(is_asked_, true)) return;
  about_ = at;
  is_stored_again_ = false;
  if (state_ != gone) state_ = looking;  // Else it is until it is seen again.
  facts_.context.spawn(run(at));
}

// True once: when the flush that was to bring the step back has ended, however it ended.
bool LastLook::has_been_stored_again(format::StepId at) {
  if (state_ != gone) return false;
  const bool is_flushed_now = facts_.decree.flush && facts_.decree.flush->at == at;
  return std::exchange(is_stored_again_, is_flushed_now) && !is_flushed_now;
}

bool LastLook::is_done(bool is_held) const {
  if (facts_.directory.empty() || !facts_.committed) return true;
  return state_ == there || (state_ == gone && !is_held);
}

asio::awaitable<void> LastLook::run(format::StepId at) {
  const std::shared_ptr<void> held = life_.hold();
  const Time deadline = facts_.clock().after(look_patience);
  const Status looked =
      co_await within(facts_.context.executor, facts_.clock(), deadline, "look for the newest step",
                      storage_.reads().look_up(at), life_.hold());
  if (about_ != at) co_return;
  const bool is_removed =
      looked ? storage_.reads().looked_up() != at : looked.error().code() == Errc::not_found;
  state_ = is_removed ? gone : there;
  if (is_removed) {
    log_warning("job={} step={} was stored in {}, and is not there any more", facts_.shape.job,
                number(at.step), facts_.directory);
    storage_.forget_catalog();
  } else if (!looked) {
    log_warning("job={} step={} not looked for again: {}", facts_.shape.job, number(at.step),
                looked.error().message());
  }
  life_.touch();
}

}  // namespace ckpt::node
