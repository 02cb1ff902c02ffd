#include "device/memory_pins.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "os/thread_settings.hpp"

namespace ckpt::device {

namespace {

// Otherwise the next mapping might get these addresses while the driver still uses the old pages.
// No object lives as long as the process, hence the static.
void keep_for_good(const std::shared_ptr<const void>& mapping) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const void>>;
  const std::lock_guard lock(mutex);
  kept->push_back(mapping);
}

}  // namespace

MemoryPins::~MemoryPins() {
  stop();
  CKPT_ASSERT(held_.empty());  // Every holder of memory keeps this object alive.
}

std::shared_ptr<const void> MemoryPins::hold(std::span<std::byte> bytes,
                                             std::shared_ptr<const void> mapping) {
  std::uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = next_id_++;
    held_.emplace(id, HeldRange{bytes, std::move(mapping)});
  }
  changed_.notify_all();
  return {bytes.data(), [self = shared_from_this(), id](const void*) { self->let_go(id); }};
}

void MemoryPins::let_go(std::uint64_t id) {
  std::shared_ptr<const void> mapping;  // Released outside of the lock: unmapping takes long.
  {
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(id);
    CKPT_ASSERT(found != held_.end());
    HeldRange& held = found->second;
    if (held.state == State::pinning || held.state == State::pinned) {
      held.is_let_go = true;  // The thread unpins it.
    } else {
      mapping = std::move(held.mapping);
      held_.erase(found);
    }
  }
  changed_.notify_all();
}

void MemoryPins::start(Pinner& pinner) {
  CKPT_ASSERT(!thread_.joinable());
  {
    const std::lock_guard lock(mutex_);
    pinner_ = &pinner;
    is_stopping_ = false;
  }
  const os::SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
}

void MemoryPins::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  pinner_ = nullptr;
}

bool MemoryPins::has_pinner() const {
  const std::lock_guard lock(mutex_);
  return pinner_ != nullptr;
}

bool MemoryPins::is_pinned(std::span<const std::byte> bytes) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(held_.begin(), held_.end(), [&](const auto& entry) {
    const HeldRange& held = entry.second;
    return held.state == State::pinned && held.bytes.data() == bytes.data() &&
           bytes.size() <= held.bytes.size();
  });
}

Status MemoryPins::wait_settled(Deadline deadline) const {
  std::unique_lock lock(mutex_);
  const bool is_settled = changed_.wait_until(lock, deadline, [&] {
    if (pinner_ == nullptr || is_stopping_) return true;
    return std::none_of(held_.begin(), held_.end(), [](const auto& entry) {
      return entry.second.state == State::waiting || entry.second.state == State::pinning;
    });
  });
  if (is_settled) return {};
  return fail(Errc::unavailable, "the memory for captures is still being pinned");
}

void MemoryPins::run() {
  os::set_thread_name("ckpt-pin");
  std::unique_lock lock(mutex_);
  while (true) {
    if (step(lock)) continue;
    if (is_stopping_) return;
    changed_.wait(lock);
  }
}

bool MemoryPins::step(std::unique_lock<std::mutex>& lock) {
  for (auto& [id, held] : held_) {
    if (held.state == State::pinned && (held.is_let_go || is_stopping_)) {
      unpin(lock, id);
      return true;
    }
    if (held.state == State::waiting && !is_stopping_) {
      pin(lock, id);
      return true;
    }
  }
  return false;
}

void MemoryPins::unpin(std::unique_lock<std::mutex>& lock, std::uint64_t id) {
  const std::span<std::byte> bytes = held_.at(id).bytes;
  std::shared_ptr<const void> mapping;
  lock.unlock();
  const bool is_unpinned = pinner_->unpin(bytes);
  lock.lock();
  HeldRange& held = held_.at(id);
  held.state = is_unpinned ? State::waiting : State::refused;
  if (!is_unpinned) keep_for_good(held.mapping);
  if (held.is_let_go) {
    mapping = std::move(held.mapping);
    held_.erase(id);
  }
  changed_.notify_all();
  lock.unlock();
  mapping.reset();
  lock.lock();
}

void MemoryPins::pin(std::unique_lock<std::mutex>& lock, std::uint64_t id) {
  HeldRange& held = held_.at(id);
  held.state = State::pinning;
  const std::span<std::byte> bytes = held.bytes;
  lock.unlock();
  const Status status = pinner_->pin(bytes);
  if (!status) log_refused(status.error());
  lock.lock();
  HeldRange& now = held_.at(id);
  now.state = status ? State::pinned : State::refused;
  if (!status && now.is_let_go) held_.erase(id);
  changed_.notify_all();
}

void MemoryPins::log_refused(const Error& error) {
  if (std::exchange(has_logged_, true)) return;
  log_warning(
      "captures of GPU tensors need an extra copy through a small pinned buffer, and guard waits "
      "for them, since their memory on the host cannot be pinned: {} (see `ulimit -l`)",
      error.message());
}

}  // namespace ckpt::device
