// BoundedQueue: a fixed ring from one thread to another; full is an answer, not a wait.
//
// Threads: one pushes, one pops. Memory: allocated once; elements are moved.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <vector>

#include "base/assert.hpp"

namespace ckpt {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : ring_(capacity + 1) { CKPT_ASSERT(capacity > 0); }

  bool push(T value) {
    const std::size_t tail = tail_.load(std::memory_order_relaxed);
    const std::size_t next = (tail + 1) % ring_.size();
    if (next == head_.load(std::memory_order_acquire)) return false;
    ring_[tail] = std::move(value);
    tail_.store(next, std::memory_order_release);
    return true;
  }
  std::optional<T> pop() {
    const std::size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return std::nullopt;
    std::optional<T> value(std::move(ring_[head]));
    head_.store((head + 1) % ring_.size(), std::memory_order_release);
    return value;
  }

 private:
  std::vector<T> ring_;
  // The reader's and the writer's ends lie on lines of their own: they are written by two threads.
  alignas(64) std::atomic<std::size_t> head_{0};
  alignas(64) std::atomic<std::size_t> tail_{0};
};

}  // namespace ckpt
