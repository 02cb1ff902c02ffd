// Goal:   memory that is about to be written gets its pages, and nothing else changes.
// Method: mapped pages, of which the kernel says which are there.
#include "os/fault_in.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "base/units.hpp"

namespace ckpt::os {
namespace {

constexpr std::size_t pages = 64;

struct FreshPages {
  FreshPages() {
    void* place = ::mmap(nullptr, pages * page_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(place != MAP_FAILED);
    bytes = {static_cast<std::byte*>(place), pages * page_bytes};
    // Else a fault may bring its neighbours along.
    (void)::madvise(place, bytes.size(), MADV_NOHUGEPAGE);
  }
  ~FreshPages() { ::munmap(bytes.data(), bytes.size()); }

  // By page.
  std::vector<bool> resident() const {
    std::vector<unsigned char> seen(pages);
    REQUIRE(::mincore(bytes.data(), bytes.size(), seen.data()) == 0);
    std::vector<bool> resident;
    for (const unsigned char it : seen) resident.push_back((it & 1) != 0);
    return resident;
  }

  std::span<std::byte> bytes;
};

std::vector<bool> pages_from(std::size_t first, std::size_t end) {
  std::vector<bool> all(pages, false);
  std::fill(all.begin() + static_cast<std::ptrdiff_t>(first),
            all.begin() + static_cast<std::ptrdiff_t>(end), true);
  return all;
}

}  // namespace

TEST_CASE_METHOD(FreshPages, "fault in: whole pages of the range, and no other", "[unit][os]") {
  fault_in(bytes.subspan(2 * page_bytes + 1, 30 * page_bytes));
  CHECK(resident() == pages_from(3, 32));
  CHECK(std::all_of(bytes.begin(), bytes.end(), [](std::byte it) { return it == std::byte(0); }));
}

TEST_CASE_METHOD(FreshPages, "fault in: memory that has a page keeps its bytes", "[unit][os]") {
  bytes[40 * page_bytes] = std::byte(7);
  fault_in(bytes);
  CHECK(resident() == pages_from(0, pages));
  CHECK(bytes[40 * page_bytes] == std::byte(7));
}

TEST_CASE_METHOD(FreshPages, "fault in: little, and what begins with a page, is left to faults",
                 "[unit][os]") {
  fault_in(bytes.first(15 * page_bytes));
  CHECK(resident() == pages_from(0, 0));
  bytes[0] = std::byte(7);
  fault_in(bytes);
  CHECK(resident() == pages_from(0, 1));
}

TEST_CASE_METHOD(FreshPages, "fault in: memory that cannot be written is no error", "[unit][os]") {
  REQUIRE(::mprotect(bytes.data(), bytes.size(), PROT_READ) == 0);
  fault_in(bytes);
  CHECK(resident() == pages_from(0, 0));
  fault_in({});
}

}  // namespace ckpt::os
