// Readiness: waits of coroutines until a non-blocking descriptor can be read or written.
//
// Threads:   one executor; one wait for each direction at a time.
// Lifetime:  held by shared_ptr in the frames that wait. Destroy it before its context.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>

#include "base/clock.hpp"
#include "os/fd.hpp"

namespace ckpt::os {

class Readiness {
 public:
  using Direction = asio::posix::stream_descriptor::wait_type;
  static constexpr Direction readable = asio::posix::stream_descriptor::wait_read;
  static constexpr Direction writable = asio::posix::stream_descriptor::wait_write;

  static Result<std::shared_ptr<Readiness>> open(const asio::any_io_executor& executor,
                                                 Clock& clock, Fd fd);
  Readiness(const asio::any_io_executor& executor, Clock& clock, int number);

  // Errors: unavailable (the deadline, with cause timed_out), cancelled (closed), io.
  static Task<void> wait(std::shared_ptr<Readiness> self, Direction direction, Time deadline);

  void close();
  bool is_open() const { return descriptor_.is_open(); }
  int number() { return descriptor_.native_handle(); }

 private:
  Clock& clock_;
  asio::posix::stream_descriptor descriptor_;
};

}  // namespace ckpt::os
