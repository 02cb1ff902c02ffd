#include "cli/workplace.hpp"

#include "bucket/any_file_system.hpp"
#include "cli/signal_watch.hpp"
#include "os/pool_file_system.hpp"

namespace ckpt::cli {

namespace {

// A person waits: a server that nobody reaches is given up within about two seconds.
constexpr int first_tries_max = 4;

bucket::BucketUse bucket_use() {
  bucket::BucketUse use;
  use.patience.first_tries_max = first_tries_max;
  use.patience.silence_level = LogLevel::warning;
  use.patience.is_interrupted = SignalWatch::has_signal;
  return use;
}

}  // namespace

Workplace::Workplace() : clock_(make_system_clock(context_.get_executor())) {}

Workplace::~Workplace() = default;

os::FileSystem& Workplace::files() {
  if (!files_) {
    constexpr auto priority = os::DiskPriority::normal;
    files_ = bucket::with_buckets(os::make_pool_file_system(os::disk_thread_count, priority),
                                  *clock_, priority, bucket_use());
  }
  return *files_;
}

}  // namespace ckpt::cli
