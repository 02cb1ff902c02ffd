#include "os/mapped_segments.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <numeric>
#include <thread>
#include <utility>

#include "base/assert.hpp"
#include "os/populate_advice.hpp"
#include "os/thread_settings.hpp"

namespace ckpt::os {

namespace {

constexpr std::uint64_t huge_page_bytes = 2 * MiB;
constexpr std::uint64_t prefault_slice_bytes = 64 * MiB;  // Short enough to share out evenly.
constexpr int prefault_threads_max = 64;

std::uint64_t sum_of(const std::vector<Segment>& segments) {
  return std::accumulate(
      segments.begin(), segments.end(), std::uint64_t{0},
      [](std::uint64_t sum, const Segment& segment) { return sum + segment.bytes; });
}

// Reserves empty addresses that start at a huge page boundary.
Result<std::span<std::byte>> reserve_addresses(std::uint64_t bytes) {
  const std::uint64_t wide = bytes + huge_page_bytes;
  void* place =
      ::mmap(nullptr, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return fail_system(fmt::format("reserve {} bytes of addresses", bytes));
  auto* start = static_cast<std::byte*>(place);
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const std::uint64_t before = align_up(address, huge_page_bytes) - address;
  if (before != 0) ::munmap(start, before);
  ::munmap(start + before + bytes, wide - before - bytes);
  return std::span(start + before, bytes);
}

// Hints: the mapping also works without them.
void advise(std::span<std::byte> bytes, const MapOptions& options) {
  (void)::madvise(bytes.data(), bytes.size(), MADV_DONTDUMP);
  if (options.wants_huge_pages) (void)::madvise(bytes.data(), bytes.size(), MADV_HUGEPAGE);
}

Status populate_slice(std::span<std::byte> slice, int advice) {
  while (::madvise(slice.data(), slice.size(), advice) != 0) {
    const int error = errno;
    if (error == EINTR || error == EAGAIN) continue;
    // EFAULT replaces the SIGBUS of touching a page without memory behind it.
    const bool is_short = error == ENOMEM || error == EFAULT || error == ENOSPC;
    const Errc code = is_short ? Errc::exhausted : error == EINVAL ? Errc::unsupported : Errc::io;
    return fail(code, fmt::format("fault in {} bytes of shared memory", slice.size()),
                std::error_code(is_short ? ENOMEM : error, std::generic_category()));
  }
  return {};
}

// For kernels without populate: allocates the files' pages, which are mapped when touched.
Status allocate_files(const std::vector<Segment>& segments) {
  for (const Segment& segment : segments) {
    const int error = ::posix_fallocate(segment.fd.number(), 0, static_cast<off_t>(segment.bytes));
    if (error != 0) {
      return fail(Errc::exhausted, fmt::format("allocate {} bytes of shared memory", segment.bytes),
                  std::error_code(error, std::generic_category()));
    }
  }
  return {};
}

// Hands slices to the threads as they ask; the first failure stops all.
class Prefaulting {
 public:
  Prefaulting(std::span<std::byte> bytes, int advice) : bytes_(bytes), advice_(advice) {}

  Status run() {
    for (;;) {
      const std::uint64_t offset = next_.fetch_add(prefault_slice_bytes);
      if (offset >= bytes_.size() || has_failed_.load()) return {};
      const std::uint64_t slice = std::min(prefault_slice_bytes, bytes_.size() - offset);
      Status status = populate_slice(bytes_.subspan(offset, slice), advice_);
      if (!status) {
        has_failed_.store(true);
        return status;
      }
    }
  }

 private:
  std::span<std::byte> bytes_;
  int advice_;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<bool> has_failed_{false};
};

}  // namespace

MappedSegments::MappedSegments(MappedSegments&& other) noexcept
    : segments_(std::move(other.segments_)),
      bytes_(std::exchange(other.bytes_, {})),
      is_writable_(other.is_writable_) {}

MappedSegments& MappedSegments::operator=(MappedSegments&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  segments_ = std::move(other.segments_);
  bytes_ = std::exchange(other.bytes_, {});
  is_writable_ = other.is_writable_;
  return *this;
}

MappedSegments::~MappedSegments() {
  unmap();
}

void MappedSegments::unmap() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
  segments_.clear();
}

Result<MappedSegments> MappedSegments::map(std::vector<Segment> segments,
                                           const MapOptions& options) {
  for (const Segment& segment : segments) {
    if (segment.bytes == 0 || segment.bytes % page_bytes != 0) {
      return fail(Errc::invalid_argument,
                  fmt::format("map a segment of {} bytes: not whole pages", segment.bytes));
    }
  }
  if (segments.empty()) return fail(Errc::invalid_argument, "map shared memory: no segments");
  CKPT_TRY(const std::span<std::byte> range, reserve_addresses(sum_of(segments)));
  MappedSegments mapped;  // Unmaps the reservation on every way out.
  mapped.bytes_ = range;
  mapped.is_writable_ = options.is_writable;
  const int protection = options.is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
  std::uint64_t offset = 0;
  for (const Segment& segment : segments) {
    void* target = range.data() + offset;
    if (::mmap(target, segment.bytes, protection, MAP_SHARED | MAP_FIXED, segment.fd.number(), 0) ==
        MAP_FAILED) {
      return fail_system(fmt::format("map {} bytes of shared memory", segment.bytes));
    }
    offset += segment.bytes;
  }
  if (!options.is_inherited && ::madvise(range.data(), range.size(), MADV_DONTFORK) != 0) {
    return fail_system("keep shared memory from forked children");
  }
  advise(range, options);
  mapped.segments_ = std::move(segments);
  return mapped;
}

Status MappedSegments::prefault(int threads) {
  Status status = populate(threads, is_writable_ ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  if (!status && status.error().code() == Errc::unsupported) return allocate_files(segments_);
  return status;
}

Status MappedSegments::map_pages(int threads) {
  // MADV_POPULATE_READ maps neighbouring pages as well. Nobody tracks writes to this memory, so
  // pages are mapped writable at once, and the first write does not fault again.
  Status status = populate(threads, MADV_POPULATE_READ);
  if (!status && status.error().code() == Errc::unsupported) return {};  // Mapped when touched.
  return status;
}

Status MappedSegments::populate(int threads, int advice) {
  CKPT_ASSERT(threads > 0);
  const std::uint64_t slices = div_ceil(bytes_.size(), prefault_slice_bytes);
  const auto useful = static_cast<std::size_t>(
      std::min<std::uint64_t>(slices, std::min(threads, prefault_threads_max)));
  Prefaulting prefaulting(bytes_, advice);
  std::vector<Status> statuses(std::max<std::size_t>(useful, 1));
  {
    std::vector<std::jthread> helpers;
    for (std::size_t i = 1; i < useful; ++i) {
      helpers.emplace_back([&prefaulting, &status = statuses[i]] {
        set_thread_name("ckpt-fault");
        status = prefaulting.run();
      });
    }
    statuses[0] = prefaulting.run();
  }
  for (Status& status : statuses) {
    if (!status) return fail(std::move(status).error());
  }
  return {};
}

std::vector<FileSpan> MappedSegments::file_spans(std::uint64_t offset, std::uint64_t bytes) const {
  CKPT_ASSERT(offset <= bytes_.size());
  CKPT_ASSERT(bytes <= bytes_.size() - offset);
  std::vector<FileSpan> spans;
  std::uint64_t segment_start = 0;
  for (const Segment& segment : segments_) {
    if (bytes == 0) break;
    const std::uint64_t segment_end = segment_start + segment.bytes;
    if (offset < segment_end) {
      const std::uint64_t piece = std::min(bytes, segment_end - offset);
      const std::uint64_t in_file = offset - segment_start;
      spans.push_back(FileSpan{bytes_.subspan(offset, piece), segment.fd.number(), in_file});
      offset += piece;
      bytes -= piece;
    }
    segment_start = segment_end;
  }
  return spans;
}

}  // namespace ckpt::os
