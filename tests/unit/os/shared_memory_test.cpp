// Goal:   memory that is handed around can neither shrink under a holder nor be taken for what it
// is
//         not, lies in one range, and never kills us for want of memory.
// Method: make, seal, map, fork and hand over small segments, then offer what must be refused.
#include "os/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>

#include "os/mapped_segments.hpp"
#include "support/assertion_trap.hpp"
#include "support/descriptors.hpp"

namespace ckpt::test {
namespace {

std::vector<os::Segment> make(std::uint64_t bytes, std::uint64_t segment_bytes) {
  os::SegmentOptions options;
  options.name = "ckpt-test";
  options.bytes = bytes;
  options.segment_bytes = segment_bytes;
  auto segments = os::create_segments(options);
  REQUIRE(segments);
  return std::move(*segments);
}

os::MappedSegments map(std::uint64_t bytes, std::uint64_t segment_bytes,
                       const os::MapOptions& options = {}) {
  auto mapped = os::MappedSegments::map(make(bytes, segment_bytes), options);
  REQUIRE(mapped);
  return std::move(*mapped);
}

TEST_CASE("shared memory: segments add up, and none is over the limit", "[unit][os]") {
  const auto segments = make(5 * page_bytes, 2 * page_bytes);
  REQUIRE(segments.size() == 3);
  CHECK(segments[0].bytes == 2 * page_bytes);
  CHECK(segments[2].bytes == page_bytes);
  CHECK(make(2 * GiB + page_bytes, os::segment_bytes_max).size() == 3);
  for (const std::uint64_t wrong : {std::uint64_t{0}, page_bytes - 1, page_bytes + 1}) {
    os::SegmentOptions options;
    options.bytes = wrong;
    const auto refused = os::create_segments(options);
    REQUIRE(!refused);
    CHECK(refused.error().code() == Errc::invalid_argument);
  }
  os::SegmentOptions too_large;
  too_large.bytes = 4 * GiB;
  too_large.segment_bytes = 2 * GiB;
  CHECK(!os::create_segments(too_large));
}

TEST_CASE("shared memory: nobody can resize a segment or lift its seals", "[unit][os]") {
  const auto segments = make(2 * page_bytes, 2 * page_bytes);
  const int fd = segments[0].fd.number();
  CHECK(::ftruncate(fd, page_bytes) != 0);
  CHECK(::ftruncate(fd, 4 * page_bytes) != 0);
  CHECK(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0);
  CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("shared memory: a received segment is adopted when it is what was announced",
          "[unit][os]") {
  auto segments = make(3 * page_bytes, 3 * page_bytes);
  auto adopted = os::adopt_segment(std::move(segments[0].fd), 3 * page_bytes);
  REQUIRE(adopted);
  CHECK(adopted->bytes == 3 * page_bytes);
}

TEST_CASE("shared memory: anything but a sealed segment of the announced size is refused",
          "[unit][os]") {
  const std::size_t before = open_descriptors();
  const auto refused = [](os::Fd fd, std::uint64_t bytes) {
    const auto adopted = os::adopt_segment(std::move(fd), bytes);
    REQUIRE(!adopted);
    CHECK(adopted.error().code() == Errc::invalid_argument);
    return adopted.error().text();
  };
  const auto unsealed = [](int seals) {
    os::Fd fd(::memfd_create("foreign", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(::ftruncate(fd.number(), page_bytes) == 0);
    if (seals != 0) REQUIRE(::fcntl(fd.number(), F_ADD_SEALS, seals) == 0);
    return fd;
  };
  CHECK(refused(unsealed(0), page_bytes).find("resized") != std::string::npos);
  refused(unsealed(F_SEAL_SHRINK), page_bytes);
  refused(unsealed(F_SEAL_GROW), page_bytes);
  CHECK(os::adopt_segment(unsealed(F_SEAL_GROW | F_SEAL_SHRINK), page_bytes));
  refused(unsealed(F_SEAL_GROW | F_SEAL_SHRINK), 2 * page_bytes);
  refused(unsealed(F_SEAL_GROW | F_SEAL_SHRINK), 0);
  refused(unsealed(F_SEAL_GROW | F_SEAL_SHRINK), page_bytes - 1);
  refused(unsealed(F_SEAL_GROW | F_SEAL_SHRINK), 1024 * GiB);
  refused(os::Fd(), page_bytes);
  refused(os::Fd(::open("/dev/zero", O_RDWR | O_CLOEXEC)), page_bytes);
  refused(os::Fd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), page_bytes);
  CHECK(open_descriptors() == before);
}

TEST_CASE("mapped segments: several segments are one range, shared with every mapping",
          "[unit][os]") {
  const std::size_t before = open_descriptors();
  {
    auto first = map(5 * page_bytes, 2 * page_bytes);
    REQUIRE(first.bytes().size() == 5 * page_bytes);
    std::vector<os::Segment> copies;
    for (const os::Segment& segment : first.segments()) {
      auto fd = segment.fd.dup();
      REQUIRE(fd);
      copies.push_back(os::Segment{std::move(*fd), segment.bytes});
    }
    auto second = os::MappedSegments::map(std::move(copies));
    REQUIRE(second);
    for (std::size_t i = 0; i < first.bytes().size(); i += 512) {
      first.bytes()[i] = static_cast<std::byte>(i / 512);
    }
    CHECK(std::equal(first.bytes().begin(), first.bytes().end(), second->bytes().begin()));
    os::MappedSegments moved(std::move(first));
    CHECK(moved.bytes()[512] == std::byte{1});
    *second = std::move(moved);
    CHECK(second->bytes()[1024] == std::byte{2});
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("mapped segments: a range's pieces of files hold the same bytes", "[unit][os]") {
  auto mapped = map(6 * page_bytes, 2 * page_bytes);
  for (std::size_t i = 0; i < mapped.bytes().size(); ++i) {
    mapped.bytes()[i] = static_cast<std::byte>(i * 7 + i / 256);
  }
  CHECK(mapped.file_spans(0, 0).empty());
  CHECK(mapped.file_spans(6 * page_bytes, 0).empty());
  CHECK(mapped.file_spans(0, 2 * page_bytes).size() == 1);
  CHECK(mapped.file_spans(0, 2 * page_bytes + 1).size() == 2);
  CHECK(mapped.file_spans(2 * page_bytes - 1, 1).size() == 1);
  for (const std::uint64_t offset : {std::uint64_t{0}, page_bytes + 17, 2 * page_bytes}) {
    const std::uint64_t bytes = mapped.bytes().size() - offset - 5;
    std::uint64_t place = offset;
    for (const os::FileSpan& span : mapped.file_spans(offset, bytes)) {
      CHECK(span.bytes.data() == mapped.bytes().data() + place);
      std::vector<std::byte> read(span.bytes.size());
      REQUIRE(::pread(span.fd, read.data(), read.size(), static_cast<off_t>(span.offset)) ==
              static_cast<ssize_t>(read.size()));
      CHECK(std::equal(read.begin(), read.end(), span.bytes.begin()));
      place += span.bytes.size();
    }
    CHECK(place == offset + bytes);
  }
  REQUIRE_TRIPS(mapped.file_spans(0, 6 * page_bytes + 1));
  REQUIRE_TRIPS(mapped.file_spans(7 * page_bytes, 0));
}

TEST_CASE("mapped segments: pages are there after prefaulting", "[unit][os]") {
  constexpr std::uint64_t bytes = 130 * MiB;  // Three slices, over two segments.
  auto mapped = map(bytes, 128 * MiB);
  for (const int threads : {3, 1}) {
    REQUIRE(mapped.prefault(threads));
    std::vector<unsigned char> resident(bytes / page_bytes);
    REQUIRE(::mincore(mapped.bytes().data(), bytes, resident.data()) == 0);
    CHECK(
        std::all_of(resident.begin(), resident.end(), [](unsigned char page) { return page & 1; }));
  }
  CHECK(mapped.bytes().back() == std::byte{0});
}

TEST_CASE("mapped segments: a read-only mapping can be read and prefaulted", "[unit][os]") {
  os::MapOptions options;
  options.is_writable = false;
  auto mapped = map(2 * page_bytes, page_bytes, options);
  REQUIRE(mapped.prefault(2));
  CHECK(mapped.bytes()[page_bytes] == std::byte{0});
}

// Unseen by a sanitizer, whose shadow of these pages would have faults of its own.
__attribute__((no_sanitize("address", "thread"))) void write_each_page(std::span<std::byte> bytes) {
  std::byte* const first = bytes.data();
  const std::size_t size = bytes.size();
  for (std::size_t offset = 0; offset < size; offset += page_bytes) first[offset] = std::byte{7};
}

TEST_CASE("mapped segments: pages that another mapping allocated are written without a fault",
          "[unit][os]") {
  constexpr std::uint64_t pages = 4096;
  auto segments = make(pages * page_bytes, pages * page_bytes);
  std::vector<os::Segment> shared;
  shared.push_back({os::Fd(::dup(segments[0].fd.number())), segments[0].bytes});
  auto first = os::MappedSegments::map(std::move(segments));
  REQUIRE(first);
  REQUIRE(first->prefault(2));
  auto second = os::MappedSegments::map(std::move(shared));
  REQUIRE(second);
  REQUIRE(second->map_pages(2));
  const auto faults = [] {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
  };
  const auto before = faults();
  write_each_page(second->bytes());
  CHECK(static_cast<std::uint64_t>(faults() - before) < pages / 4);
  CHECK(first->bytes()[(pages - 1) * page_bytes] == std::byte{7});
}

// How a child ends that reads the first byte of the range.
int read_in_child(std::span<std::byte> bytes) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    const volatile std::byte* first = bytes.data();
    std::_Exit(*first == std::byte{7} ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

TEST_CASE("mapped segments: a forked child has the range only where it may", "[unit][os]") {
  auto inherited = map(page_bytes, page_bytes);
  inherited.bytes()[0] = std::byte{7};
  CHECK(read_in_child(inherited.bytes()) == 0);
  os::MapOptions options;
  options.is_inherited = false;
  auto kept = map(page_bytes, page_bytes, options);
  kept.bytes()[0] = std::byte{7};
  CHECK(read_in_child(kept.bytes()) != 0);
  CHECK(kept.bytes()[0] == std::byte{7});
}

TEST_CASE("mapped segments: nothing, or half a page, cannot be mapped", "[unit][os]") {
  CHECK(!os::MappedSegments::map({}));
  auto segments = make(page_bytes, page_bytes);
  segments[0].bytes = 100;
  const auto refused = os::MappedSegments::map(std::move(segments));
  REQUIRE(!refused);
  CHECK(refused.error().code() == Errc::invalid_argument);
}

TEST_CASE("mapped segments: a segment that is shorter than it says is an error, not a SIGBUS",
          "[unit][os]") {
  auto segments = make(page_bytes, page_bytes);
  segments[0].bytes = 4 * page_bytes;  // As adopt_segment() would have found out.
  auto mapped = os::MappedSegments::map(std::move(segments));
  REQUIRE(mapped);
  const auto status = mapped->prefault(1);
  REQUIRE(!status);
  CHECK(status.error().code() == Errc::exhausted);
}

}  // namespace
}  // namespace ckpt::test
