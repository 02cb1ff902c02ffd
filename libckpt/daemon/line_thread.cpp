#include "daemon/line_thread.hpp"

#include "os/thread_settings.hpp"

namespace ckpt::daemon {

namespace {

// For coroutines that only have to notice the end.
constexpr std::chrono::milliseconds line_drain_time(200);

}  // namespace

LineThread::LineThread()
    : work_(context_.get_executor()),
      clock_(make_system_clock(context_.get_executor())),
      network_(context_.get_executor(), *clock_) {}

LineThread::~LineThread() {
  work_.reset();
  context_.stop();
  if (thread_.joinable()) thread_.join();
  clock_->close();
  context_.restart();
  context_.run_for(line_drain_time);
}

node::LineSeams LineThread::seams() {
  return {context_.get_executor(), clock_.get(), &network_};
}

void LineThread::start() {
  thread_ = std::thread([this] {
    os::set_thread_name("ckptd-line");
    context_.run();
  });
}

}  // namespace ckpt::daemon
