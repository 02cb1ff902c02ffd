#include "os/shared_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ckpt::os {

namespace {

#ifndef MFD_NOEXEC_SEAL
constexpr unsigned MFD_NOEXEC_SEAL = 0x0008u;  // From Linux 6.3; older headers lack it.
#endif

constexpr int resize_seals = F_SEAL_SHRINK | F_SEAL_GROW;

Fd open_memfd(const std::string& name) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Fd fd(::memfd_create(name.c_str(), flags | MFD_NOEXEC_SEAL));
  if (!fd && errno == EINVAL) fd = Fd(::memfd_create(name.c_str(), flags));
  return fd;
}

Result<Segment> create_segment(const std::string& name, std::uint64_t bytes) {
  Fd fd = open_memfd(name);
  if (!fd) return fail_system("create shared memory " + name);
  if (::ftruncate(fd.number(), static_cast<off_t>(bytes)) != 0) {
    return fail_system(fmt::format("make shared memory {} {} bytes long", name, bytes));
  }
  if (::fcntl(fd.number(), F_ADD_SEALS, resize_seals | F_SEAL_SEAL) != 0) {
    return fail_system(fmt::format("seal shared memory {} against resizing", name));
  }
  return Segment{std::move(fd), bytes};
}

bool is_segment_size(std::uint64_t bytes) {
  return bytes > 0 && bytes <= segment_bytes_max && bytes % page_bytes == 0;
}

}  // namespace

Result<std::vector<Segment>> create_segments(const SegmentOptions& options) {
  if (options.bytes == 0 || options.bytes % page_bytes != 0 ||
      !is_segment_size(options.segment_bytes)) {
    return fail(Errc::invalid_argument,
                fmt::format("create shared memory {}: {} bytes in segments of {}: both must be "
                            "multiples of {}, segments at most {}",
                            options.name, options.bytes, options.segment_bytes, page_bytes,
                            segment_bytes_max));
  }
  std::vector<Segment> segments;
  for (std::uint64_t made = 0; made < options.bytes;) {
    const std::uint64_t bytes = std::min(options.segment_bytes, options.bytes - made);
    CKPT_TRY(Segment segment, create_segment(options.name, bytes));
    segments.push_back(std::move(segment));
    made += bytes;
  }
  return segments;
}

Result<Segment> adopt_segment(Fd fd, std::uint64_t announced_bytes) {
  const auto refused = [announced_bytes](std::string_view why) {
    return fail(Errc::invalid_argument,
                fmt::format("adopt shared memory of {} bytes: {}", announced_bytes, why));
  };
  if (!is_segment_size(announced_bytes)) return refused("no segment has that size");
  struct stat status{};
  if (::fstat(fd.number(), &status) != 0) return refused("the descriptor is not open");
  if (!S_ISREG(status.st_mode)) return refused("the descriptor is no memory");
  // Seals are checked first: without them the size may still change.
  const int seals = ::fcntl(fd.number(), F_GET_SEALS);
  if (seals < 0) return refused("the descriptor cannot be sealed");
  if ((seals & resize_seals) != resize_seals) return refused("it may still be resized");
  if (static_cast<std::uint64_t>(status.st_size) != announced_bytes) {
    return refused(fmt::format("it has {} bytes", status.st_size));
  }
  return Segment{std::move(fd), announced_bytes};
}

}  // namespace ckpt::os
