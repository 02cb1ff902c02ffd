// SnapThread: `ckpt-snap`, the trainer's one background thread that talks to the engine.
//
// Threads:  the executor's work runs on it, and nothing else does. Blocked signals: all, so that
//           the trainer's handlers keep running on the trainer's threads.
// Lifetime: join() before what the work uses is destroyed; the context goes with the object.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <optional>
#include <thread>

#include "base/task.hpp"

namespace ckpt::client {

class SnapThread {
 public:
  SnapThread();
  ~SnapThread();
  SnapThread(const SnapThread&) = delete;
  SnapThread& operator=(const SnapThread&) = delete;

  asio::any_io_executor executor() { return context_.get_executor(); }
  void start();
  // Returns when all work has ended, or when the work called stop().
  void join();
  void stop() { context_.stop(); }
  // After join(): runs the remaining work on the caller's thread, for at most `longest`. False:
  // some is left.
  bool drain(std::chrono::milliseconds longest);

 private:
  asio::io_context context_;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  std::thread thread_;
};

}  // namespace ckpt::client
