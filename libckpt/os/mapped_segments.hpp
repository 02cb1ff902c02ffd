// MappedSegments: a list of segments mapped into one contiguous range of addresses.
//
// Lifetime: owns the descriptors and the mapping; both end with it.
// Memory:   left out of core dumps. Nothing is allocated before prefault() or the first touch; a
//           touch that finds no memory kills the process, so prefault() comes first.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "os/file_span.hpp"
#include "os/shared_memory.hpp"

namespace ckpt::os {

struct MapOptions {
  bool is_writable = true;
  // False: a forked child does not have the range at all. Pinned pages must not be copied on write.
  bool is_inherited = true;
  bool wants_huge_pages = true;  // If the machine allows them for shared memory.
};

class MappedSegments {
 public:
  // Errors: invalid_argument (no segments, or sizes that do not fit pages), exhausted, io.
  static Result<MappedSegments> map(std::vector<Segment> segments, const MapOptions& options = {});

  MappedSegments() = default;
  MappedSegments(MappedSegments&& other) noexcept;
  MappedSegments& operator=(MappedSegments&& other) noexcept;
  ~MappedSegments();

  // Allocates and maps every page with `threads` threads, then returns. Errors: exhausted (no
  // memory; pages already allocated stay until the segments are gone).
  Status prefault(int threads);
  // Like prefault(), for pages that another process has already allocated: fills only our page
  // table, in large batches, at a third of the cost.
  Status map_pages(int threads);

  std::span<std::byte> bytes() const { return bytes_; }
  const std::vector<Segment>& segments() const { return segments_; }
  // Splits a range of bytes() into spans of the segments' files. The range must lie within bytes().
  std::vector<FileSpan> file_spans(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  void unmap();
  Status populate(int threads, int advice);

  std::vector<Segment> segments_;
  std::span<std::byte> bytes_;
  bool is_writable_ = false;
};

}  // namespace ckpt::os
