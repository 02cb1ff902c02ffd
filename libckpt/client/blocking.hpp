// Blocking: runs one task over the file system to its end, for calls that need no daemon.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.hpp"
#include "base/spawn.hpp"
#include "bucket/any_file_system.hpp"
#include "os/pool_file_system.hpp"

namespace ckpt::client {

// `start(files, clock)` makes the task; both outlive it. Errors: unavailable (not in time).
template <class T, class Start>
Result<T> run_blocking(const Start& start,
                       std::chrono::steady_clock::duration limit = std::chrono::hours(24 * 365)) {
  asio::io_context context(1);
  const auto clock = make_system_clock(context.get_executor());
  constexpr auto priority = os::DiskPriority::normal;
  const auto files = bucket::with_buckets(
      os::make_pool_file_system(os::disk_thread_count, priority), *clock, priority);
  std::optional<Result<T>> result;
  spawn_into(context.get_executor(), start(*files, *clock), result);
  context.run_for(limit);
  if (!result && !context.stopped())
    return fail(Errc::unavailable, "storage did not answer in time");
  if (!result) return fail(Errc::cancelled, "reading a checkpoint was interrupted");
  return std::move(*result);
}

}  // namespace ckpt::client
