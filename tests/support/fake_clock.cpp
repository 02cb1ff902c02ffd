#include "support/fake_clock.hpp"

#include <boost/asio/post.hpp>
#include <map>

namespace ckpt::test {

namespace {
struct Entry {
  std::function<void()> expired;
};
}  // namespace

// Timers point here weakly: the clock may go first.
struct FakeClock::State {
  using Key = std::pair<Time, std::uint64_t>;
  Time now{std::chrono::hours(1)};
  std::uint64_t registered = 0;
  bool is_closed = false;
  std::map<Key, std::shared_ptr<Entry>> waiting;

  class Handle : public Timer {
   public:
    Handle(const std::shared_ptr<State>& state, const std::shared_ptr<Entry>& entry, Key key)
        : state_(state), entry_(entry), key_(key) {}
    // Also one that was posted already finds nothing to call.
    ~Handle() override {
      if (const auto entry = entry_.lock()) std::exchange(entry->expired, nullptr);
      if (const auto state = state_.lock()) state->waiting.erase(key_);
    }

   private:
    std::weak_ptr<State> state_;
    std::weak_ptr<Entry> entry_;
    Key key_;
  };
};

namespace {
void post_expired(asio::io_context& context, std::shared_ptr<Entry> entry) {
  asio::post(context, [entry = std::move(entry)] {
    const auto expired = std::exchange(entry->expired, nullptr);
    if (expired) expired();
  });
}
}  // namespace

FakeClock::FakeClock(asio::io_context& context)
    : context_(context), state_(std::make_shared<State>()) {}

FakeClock::~FakeClock() {
  FakeClock::close();
}

void FakeClock::close() {
  state_->is_closed = true;
  // Dropped handlers may own timers of this clock: they must find the map empty, not half cleared.
  const auto dropped = std::exchange(state_->waiting, {});
}

Time FakeClock::now() const {
  return state_->now;
}

std::chrono::system_clock::time_point FakeClock::wall_time() const {
  using WallTime = std::chrono::system_clock::time_point;
  return WallTime(std::chrono::duration_cast<WallTime::duration>(state_->now.time_since_epoch()));
}

std::unique_ptr<Timer> FakeClock::call_at(Time deadline, std::function<void()> expired) {
  if (state_->is_closed) return std::make_unique<Timer>();
  const auto entry = std::make_shared<Entry>(std::move(expired));
  const State::Key key{deadline, state_->registered++};
  if (deadline <= state_->now) {
    post_expired(context_, entry);
  } else {
    state_->waiting.emplace(key, entry);
  }
  return std::make_unique<State::Handle>(state_, entry, key);
}

void FakeClock::poll() {
  context_.restart();
  context_.poll();
}

void FakeClock::fire_due() {
  while (!state_->waiting.empty() && state_->waiting.begin()->first.first <= state_->now) {
    auto due = state_->waiting.extract(state_->waiting.begin());
    post_expired(context_, std::move(due.mapped()));
  }
  poll();
}

bool FakeClock::advance_to_next() {
  poll();
  if (state_->waiting.empty()) return false;
  const Time next = state_->waiting.begin()->first.first;
  if (next == no_deadline) return false;
  state_->now = next;
  fire_due();
  return true;
}

void FakeClock::advance(Duration duration) {
  poll();
  const Time target = state_->now + duration;
  while (!state_->waiting.empty() && state_->waiting.begin()->first.first <= target) {
    state_->now = state_->waiting.begin()->first.first;
    fire_due();
  }
  state_->now = target;
}

void FakeClock::jump(Duration duration) {
  state_->now += duration;
  fire_due();
}

std::optional<Time> FakeClock::next_deadline() const {
  if (state_->waiting.empty()) return std::nullopt;
  return state_->waiting.begin()->first.first;
}

std::size_t FakeClock::pending() const {
  return state_->waiting.size();
}

}  // namespace ckpt::test
