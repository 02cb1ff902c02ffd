// SharedMemory: memfd segments that can be handed to another process and never change their size.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "os/fd.hpp"

namespace ckpt::os {

// The largest buffer that io_uring registers.
inline constexpr std::uint64_t segment_bytes_max = GiB;

// Sealed against shrinking and growing, so that no holder can make another's mapping fault.
struct Segment {
  Fd fd;
  std::uint64_t bytes = 0;
};

struct SegmentOptions {
  std::string name;  // Seen in /proc/PID/maps.
  // Of all segments together, a multiple of the page; at least one page.
  std::uint64_t bytes = 0;
  std::uint64_t segment_bytes = segment_bytes_max;  // Of each but the last.
};

// Reserves nothing yet: MappedSegments::prefault() does.
// Errors: invalid_argument (sizes), exhausted (descriptors), io.
Result<std::vector<Segment>> create_segments(const SegmentOptions& options);

// Takes over a descriptor that another process sent, once it is proven to be a segment.
// Errors: invalid_argument (another size than announced, or not sealed against resizing).
Result<Segment> adopt_segment(Fd fd, std::uint64_t announced_bytes);

}  // namespace ckpt::os
