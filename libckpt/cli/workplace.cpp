#include "cli/workplace.hpp"

#include "bucket/any_file_system.hpp"
#include "os/pool_file_system.hpp"

namespace ckpt::cli {

Workplace::Workplace() : clock_(make_system_clock(context_.get_executor())) {}

Workplace::~Workplace() = default;

os::FileSystem& Workplace::files() {
  if (!files_) {
    constexpr auto priority = os::DiskPriority::normal;
    files_ = bucket::with_buckets(os::make_pool_file_system(os::disk_thread_count, priority),
                                  *clock_, priority);
  }
  return *files_;
}

}  // namespace ckpt::cli
