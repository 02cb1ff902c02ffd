// LineThread: `ckptd-line`, the thread that keeps the control connections to peers alive.
//
// It only reads and writes small frames, so that a node whose engine is busy never looks dead
// (docs/decisions/0015).
//
// Lifetime: ends after the engine, and before the engine's io_context, to which its work posts.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <memory>
#include <thread>

#include "node/engine.hpp"
#include "wire/tcp_network.hpp"

namespace ckpt::daemon {

class LineThread {
 public:
  LineThread();
  ~LineThread();
  LineThread(const LineThread&) = delete;
  LineThread& operator=(const LineThread&) = delete;

  node::LineSeams seams();
  void start();

 private:
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::unique_ptr<Clock> clock_;
  wire::TcpNetwork network_;
  std::thread thread_;
};

}  // namespace ckpt::daemon
