// Completion: the way back from a disk thread to the coroutine that waits for it.
//
// `await_completion(start)` suspends, calls `start` with a Completion, and resumes when some thread
// has called complete(): always through the coroutine's own executor, never inside the call.
//
// Lifetime: complete or destroy a Completion before the executor's context is destroyed. The owner
//           of the threads joins them in its destructor and is destroyed first.
#pragma once

#include <boost/asio/associated_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/task.hpp"

namespace ckpt::os {

class Completion {
 public:
  virtual ~Completion() = default;
  // Call it once, from any thread. `result` is a count of bytes, or a negative errno.
  virtual void complete(std::int64_t result) = 0;
};

namespace detail {

template <class Handler>
class PostedCompletion final : public Completion {
 public:
  explicit PostedCompletion(Handler handler)
      : executor_(asio::prefer(asio::get_associated_executor(handler),
                               asio::execution::outstanding_work.tracked)),
        handler_(std::move(handler)) {}

  void complete(std::int64_t result) override {
    asio::post(executor_, [handler = std::move(handler_), result]() mutable { handler(result); });
  }

 private:
  using Executor =
      std::decay_t<decltype(asio::prefer(asio::get_associated_executor(std::declval<Handler&>()),
                                         asio::execution::outstanding_work.tracked))>;
  Executor executor_;
  Handler handler_;
};

}  // namespace detail

using StartWork = std::function<void(std::unique_ptr<Completion>)>;

asio::awaitable<std::int64_t> await_completion(StartWork start);

}  // namespace ckpt::os
