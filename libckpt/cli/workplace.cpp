#include "cli/workplace.hpp"

#include "os/pool_file_system.hpp"

namespace ckpt::cli {

Workplace::Workplace() : clock_(make_system_clock(context_.get_executor())) {}

Workplace::~Workplace() = default;

os::FileSystem& Workplace::files() {
  if (!files_) {
    files_ = os::make_pool_file_system(os::disk_thread_count, os::DiskPriority::normal);
  }
  return *files_;
}

}  // namespace ckpt::cli
