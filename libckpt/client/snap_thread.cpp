#include "client/snap_thread.hpp"

#include "os/thread_settings.hpp"

namespace ckpt::client {

SnapThread::SnapThread() : context_(1), work_(asio::make_work_guard(context_)) {}

SnapThread::~SnapThread() {
  context_.stop();
  join();
}

void SnapThread::start() {
  const os::SignalsBlocked blocked;
  thread_ = std::thread([this] {
    os::set_thread_name("ckpt-snap");
    context_.run();
  });
}

void SnapThread::join() {
  work_.reset();
  if (thread_.joinable()) thread_.join();
}

bool SnapThread::drain(std::chrono::milliseconds longest) {
  context_.restart();
  context_.run_for(longest);
  return context_.stopped();
}

}  // namespace ckpt::client
