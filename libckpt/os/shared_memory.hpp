// SharedMemory: memfd segments of a fixed size that can be sent to another process.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "os/fd.hpp"

namespace ckpt::os {

// The largest buffer that io_uring can register.
inline constexpr std::uint64_t segment_bytes_max = GiB;

// Sealed against shrinking and growing, so that no holder can make another's mapping fault.
struct Segment {
  Fd fd;
  std::uint64_t bytes = 0;
};

struct SegmentOptions {
  std::string name;  // Shown in /proc/PID/maps.
  // The total over all segments: a multiple of the page, at least one page.
  std::uint64_t bytes = 0;
  std::uint64_t segment_bytes = segment_bytes_max;  // The size of each but the last.
};

// Reserves nothing yet: MappedSegments::prefault() does.
// Errors: invalid_argument (sizes), exhausted (descriptors), io.
Result<std::vector<Segment>> create_segments(const SegmentOptions& options);

// Takes ownership of a descriptor that another process sent, after checking that it is a segment.
// Errors: invalid_argument (the size is not the announced one, or it is not sealed against
// resizing).
Result<Segment> adopt_segment(Fd fd, std::uint64_t announced_bytes);

}  // namespace ckpt::os
