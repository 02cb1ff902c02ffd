#include "flush/flusher.hpp"

#include "base/assert.hpp"
#include "base/log.hpp"
#include "os/path.hpp"

namespace ckpt::flush {

// Attempt: all shards of this node that belong to one attempt to store a step.
struct Flusher::Attempt {
  storage::StepAttempt target;
  format::StepId at;
  int shards = 0;        // Started and not ended.
  int in_flight = 0;     // Those of them that use the disk.
  bool is_over = false;  // Given up, or replaced by a newer one.
};

struct Flusher::State {
  State(Clock& time, FlusherOptions how) : clock(time), options(std::move(how)), changed(time) {}

  // Joins one more shard to those of `target`. Returns null if a newer attempt waits already.
  std::shared_ptr<Attempt> join(const storage::StepAttempt& target, format::StepId at);
  void leave(const std::shared_ptr<Attempt>& attempt);
  void give_up(const std::shared_ptr<Attempt>& attempt) {
    if (!attempt) return;
    attempt->is_over = true;
    if (waiting == attempt) waiting = nullptr;
    changed.notify_all();
  }
  // Called before each Chunk.
  Task<void> take_turn(std::shared_ptr<Attempt> attempt, std::uint64_t bytes,
                       std::function<bool()> is_wanted);
  bool may_write(const std::shared_ptr<Attempt>& attempt) const {
    return writing == attempt && attempt->in_flight < ranks_in_flight;
  }

  Clock& clock;
  FlusherOptions options;
  Signal changed;
  StopGate gate;
  std::shared_ptr<Attempt> writing;
  std::shared_ptr<Attempt> waiting;
  FlusherStatus counts;
};

namespace {

Unexpected given_up(const storage::StepAttempt& target, const char* why) {
  return fail(Errc::cancelled, "write into " + os::display(target.place()) + ": " + why);
}

}  // namespace

std::shared_ptr<Flusher::Attempt> Flusher::State::join(const storage::StepAttempt& target,
                                                       format::StepId at) {
  for (const auto& known : {writing, waiting}) {
    if (known && known->target == target) {
      ++known->shards;
      return known;
    }
  }
  auto attempt = std::make_shared<Attempt>(Attempt{target, at});
  attempt->shards = 1;
  if (!writing) {
    writing = attempt;
    counts.since = clock.now();
    return attempt;
  }
  if (waiting && waiting->at > at) return nullptr;
  give_up(waiting);
  waiting = attempt;
  return attempt;
}

void Flusher::State::leave(const std::shared_ptr<Attempt>& attempt) {
  --attempt->shards;
  CKPT_ASSERT(attempt->shards >= 0);
  if (attempt->shards == 0 && writing == attempt) {
    writing = std::exchange(waiting, nullptr);
    counts.since = clock.now();
  }
  changed.notify_all();
}

Task<void> Flusher::State::take_turn(std::shared_ptr<Attempt> attempt, std::uint64_t bytes,
                                     std::function<bool()> is_wanted) {
  const std::shared_ptr<Throttle> throttle = options.throttle;
  if (!attempt->is_over && throttle) {
    CKPT_CO_CHECK(co_await throttle->take(bytes));
  }
  if (attempt->is_over) co_return given_up(attempt->target, "it was given up");
  if (is_wanted && !is_wanted()) {
    co_return given_up(attempt->target, "another node writes this part now");
  }
  co_return Status();
}

Flusher::Flusher(Clock& clock, FlusherOptions options)
    : state_(std::make_shared<State>(clock, std::move(options))) {}

Flusher::~Flusher() {
  state_->changed.close();
}

Task<format::ShardFlushed> Flusher::write_shard(storage::ShardToWrite source,
                                                storage::StepAttempt target, WriteWatch watch) {
  const auto state = state_;
  if (state->gate.is_stopping()) co_return given_up(target, "the daemon is stopping");
  const StopGate::Pass pass = state->gate.enter();
  const auto attempt = state->join(target, source.record->id.at);
  if (!attempt) {
    ++state->counts.shards_skipped;
    co_return given_up(target, "a newer step waits to be written");
  }
  // Ends with a shard in flight, and at the latest with stop().
  while (!attempt->is_over && !state->may_write(attempt)) {
    auto woken = co_await state->changed.wait_until(no_deadline);
    if (!woken) co_return fail(woken.error());
  }
  if (attempt->is_over) {
    ++state->counts.shards_skipped;
    state->leave(attempt);
    co_return given_up(target, "it was given up, or a newer step took its place");
  }
  ++attempt->in_flight;
  CKPT_ASSERT(attempt->in_flight <= attempt->shards);
  storage::TransferHooks hooks;
  hooks.compute = state->options.compute;
  hooks.before_transfer = [state, attempt,
                           is_wanted = std::move(watch.is_wanted)](std::uint64_t chunk_bytes) {
    return state->take_turn(attempt, chunk_bytes, is_wanted);
  };
  if (watch.progressed) {
    hooks.verified = [progressed = std::move(watch.progressed)](std::uint64_t) { progressed(); };
  }
  const std::uint64_t bytes = source.record->bytes;
  auto done = co_await storage::put(target, source, hooks);
  --attempt->in_flight;
  CKPT_ASSERT(attempt->in_flight >= 0);
  if (done) {
    ++state->counts.shards_written;
    const std::uint64_t shared = source.sharing ? source.sharing->bytes_shared() : 0;
    CKPT_ASSERT(shared <= bytes);
    state->counts.bytes_written += bytes - shared;
    state->counts.bytes_shared += shared;
  } else {
    ++state->counts.failed;
  }
  state->leave(attempt);
  co_return done;
}

void Flusher::give_up(const storage::StepAttempt& target) {
  for (const auto& attempt : {state_->writing, state_->waiting}) {
    if (attempt && attempt->target == target) state_->give_up(attempt);
  }
}

FlusherStatus Flusher::status() const {
  FlusherStatus status = state_->counts;
  if (state_->writing) status.writing = state_->writing->target.place();
  if (state_->waiting) status.waiting = state_->waiting->target.place();
  return status;
}

Task<void> Flusher::stop(Time deadline) {
  const auto state = state_;
  state->gate.stop();
  state->give_up(state->waiting);
  state->give_up(state->writing);
  Status drained = co_await state->gate.drained(state->clock, deadline);
  co_return drained;
}

}  // namespace ckpt::flush
