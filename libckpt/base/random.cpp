#include "base/random.hpp"

#include <sys/random.h>

#include <cerrno>

#include "base/assert.hpp"

namespace ckpt {

std::uint64_t random_from_system() {
  std::uint64_t value = 0;
  ssize_t got = 0;
  // Reads of up to 256 bytes are never short; only a signal that comes before the pool is ready
  // interrupts them.
  do {
    got = ::getrandom(&value, sizeof value, 0);
  } while (got < 0 && errno == EINTR);
  CKPT_ASSERT(got == static_cast<ssize_t>(sizeof value));
  return value;
}

}  // namespace ckpt
