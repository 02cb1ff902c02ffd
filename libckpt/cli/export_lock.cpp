#include "cli/export_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <thread>

namespace ckpt::cli {

namespace {

// An export that finds itself alone lists a directory and removes some files: others wait so long.
constexpr int tries_max = 200;
constexpr std::chrono::milliseconds pause{50};

}  // namespace

ExportLock::ExportLock(const std::string& directory)
    : directory_(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
      is_alone_(directory_.is_open() && ::flock(directory_.number(), LOCK_EX | LOCK_NB) == 0) {}

void ExportLock::share() {
  is_alone_ = false;
  if (!directory_.is_open()) return;
  for (int tries = 0; tries < tries_max; ++tries) {
    const bool is_shared = ::flock(directory_.number(), LOCK_SH | LOCK_NB) == 0;
    if (is_shared || errno != EWOULDBLOCK) return;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace ckpt::cli
