#include "os/posix_clone.hpp"

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <cerrno>

#include "os/path.hpp"
#include "os/storage_error.hpp"

namespace ckpt::os {

namespace {

std::string what(const OpenFile& target, const CloneSource& source) {
  return "share bytes of " + display(source.path) + " with " + display(target.path);
}

Status check_unchanged(const OpenFile& opened, const CloneSource& source, const OpenFile& target) {
  struct stat status{};
  if (::fstat(opened.buffered.number(), &status) != 0)
    return storage_failure(errno, what(target, source));
  if (to_file_status(status) == source.expected) return {};
  return fail(Errc::not_found, what(target, source) + ": it is not the file that was written");
}

}  // namespace

Status clone_range(const OpenFile& target, const CloneRange& range, const CloneSource& source) {
  if (range.bytes == 0) return {};  // The kernel would take it for all that follows.
  CKPT_TRY(const auto opened, open_file(source.path, Caching::buffered));
  CKPT_CHECK(check_unchanged(*opened, source, target));
  struct file_clone_range wish{};
  wish.src_fd = opened->buffered.number();
  wish.src_offset = range.from;
  wish.src_length = range.bytes;
  wish.dest_offset = range.to;
  int result = 0;
  do {
    result = ::ioctl(target.buffered.number(), FICLONERANGE, &wish);
  } while (result != 0 && errno == EINTR);
  if (result != 0) return clone_failure(errno, what(target, source));
  // It was that file, with those bytes, all the while.
  return check_unchanged(*opened, source, target);
}

}  // namespace ckpt::os
