// Goal:   a restore that waits gives its tensors all of their pages, and changes none of their
//         bytes.
// Method: fresh memory, of which the kernel says which pages are there.
#include "client/touch_ahead.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "base/units.hpp"

namespace ckpt::client {
namespace {

struct FreshMemory {
  explicit FreshMemory(std::size_t size) {
    void* place = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(place != MAP_FAILED);
    bytes = {static_cast<std::byte*>(place), size};
    (void)::madvise(place, size, MADV_NOHUGEPAGE);
  }
  ~FreshMemory() { ::munmap(bytes.data(), bytes.size()); }

  std::size_t resident_pages() const {
    std::vector<unsigned char> seen(bytes.size() / page_bytes);
    REQUIRE(::mincore(bytes.data(), bytes.size(), seen.data()) == 0);
    return static_cast<std::size_t>(
        std::ranges::count_if(seen, [](unsigned char it) { return (it & 1) != 0; }));
  }

  std::span<std::byte> bytes;
};

}  // namespace

TEST_CASE("touch ahead: all tensors get their pages, some at a time", "[unit][client]") {
  FreshMemory large(2 * MiB + 128 * page_bytes);
  FreshMemory small(32 * page_bytes);
  large.bytes[3] = std::byte{7};
  TouchAhead touch({std::span<std::byte>(), large.bytes.subspan(MiB), small.bytes}, GiB);
  CHECK(large.resident_pages() == 1);
  CHECK(touch.go_on());
  CHECK(large.resident_pages() == 1 + MiB / page_bytes);
  CHECK(small.resident_pages() == 0);
  CHECK(touch.go_on());
  CHECK(touch.go_on());
  CHECK_FALSE(touch.go_on());
  CHECK_FALSE(touch.go_on());
  CHECK(large.resident_pages() == 1 + MiB / page_bytes + 128);
  CHECK(small.resident_pages() == 32);
  CHECK(large.bytes[3] == std::byte{7});
}

TEST_CASE("touch ahead: without tensors there is nothing to do", "[unit][client]") {
  TouchAhead touch({}, GiB);
  CHECK_FALSE(touch.go_on());
}

TEST_CASE("touch ahead: without room for two such processes nothing is touched", "[unit][client]") {
  FreshMemory tensor(MiB);
  TouchAhead too_large({tensor.bytes}, 2 * MiB - 1);
  CHECK_FALSE(too_large.go_on());
  CHECK(tensor.resident_pages() == 0);
  TouchAhead fits({tensor.bytes}, 2 * MiB);
  CHECK(fits.go_on());
  CHECK(tensor.resident_pages() == MiB / page_bytes);
}

}  // namespace ckpt::client
