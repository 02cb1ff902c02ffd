// Workplace: a context, a clock and a file system, which a command needs to run coroutines.
//
// Threads:  the caller's; the files bring a few of their own.
// Lifetime: the result of a Task must not outlive it.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>

#include "base/clock.hpp"
#include "base/spawn.hpp"
#include "os/file_system.hpp"
#include "storage/site.hpp"

namespace ckpt::cli {

class Workplace {
 public:
  Workplace();
  ~Workplace();

  template <class T>
  Result<T> run(Task<T> task) {
    std::optional<Result<T>> result;
    // A disk thread may still release the last work of the previous run. Without this guard, that
    // release would stop the context, and this run would end with its coroutine alive.
    const auto work = asio::make_work_guard(context_);
    context_.restart();
    spawn_into(context_.get_executor(), std::move(task), result);
    while (!result) context_.run_one();
    return std::move(*result);
  }

  asio::any_io_executor executor() { return context_.get_executor(); }
  Clock& clock() { return *clock_; }
  os::FileSystem& files();  // Made at the first call.
  // The directory or bucket of a job, or of one checkpoint.
  storage::Site site(std::string directory) { return {files(), clock(), std::move(directory)}; }

 private:
  asio::io_context context_{1};
  std::unique_ptr<Clock> clock_;
  std::unique_ptr<os::FileSystem> files_;
};

}  // namespace ckpt::cli
