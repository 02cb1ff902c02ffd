#include "os/landlock.hpp"

#include <linux/landlock.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

namespace ckpt::os {

int landlock_version() {
  const long version = ::syscall(SYS_landlock_create_ruleset, nullptr, std::size_t{0},
                                 LANDLOCK_CREATE_RULESET_VERSION);
  return version < 0 ? 0 : static_cast<int>(version);
}

}  // namespace ckpt::os
