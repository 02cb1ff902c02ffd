#include "os/fd.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace ckpt::os {

void Fd::reset(int number) {
  const int closed = std::exchange(number_, number < 0 ? -1 : number);
  if (closed < 0) return;
  // Destructors close descriptors after failures, so errno is preserved for the error message.
  // Linux has closed the descriptor even after EINTR: closing it again would close somebody else's.
  const int cause = errno;
  ::close(closed);
  errno = cause;
}

Result<Fd> Fd::dup() const {
  return duplicate(number_);
}

Result<Fd> duplicate(int borrowed) {
  Fd copy(::fcntl(borrowed, F_DUPFD_CLOEXEC, 0));
  if (!copy) return fail_system("duplicate descriptor " + std::to_string(borrowed));
  return copy;
}

std::error_code last_system_error() {
  return {errno, std::generic_category()};
}

Unexpected fail_system(std::string attempted, std::error_code cause, std::source_location where) {
  const int number = cause.value();
  const bool is_limit = number == ENOMEM || number == EMFILE || number == ENFILE ||
                        number == ENOSPC || number == EAGAIN || number == EDQUOT;
  return fail(is_limit ? Errc::exhausted : Errc::io, std::move(attempted), cause, where);
}

}  // namespace ckpt::os
