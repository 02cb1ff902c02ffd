#include "os/fault_in.hpp"

#include <sys/mman.h>

#include <cstdint>

#include "base/units.hpp"
#include "os/populate_advice.hpp"

namespace ckpt::os {

namespace {

// Two system calls cost about as much as the faults of a few pages.
constexpr std::size_t worthwhile_bytes = 64 * KiB;

}  // namespace

void fault_in(std::span<std::byte> bytes) {
  // Pages that are covered in part belong to others, too.
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::size_t before = align_up(address, page_bytes) - address;
  if (bytes.size() < before + worthwhile_bytes) return;
  std::byte* const begin = bytes.data() + before;
  const std::size_t whole = (bytes.size() - before) / page_bytes * page_bytes;
  // To populate memory that has its pages costs a third of copying it, so one page speaks for all.
  unsigned char is_resident = 0;
  if (::mincore(begin, page_bytes, &is_resident) != 0 || (is_resident & 1) != 0) return;
  (void)::madvise(begin, whole, MADV_POPULATE_WRITE);
}

}  // namespace ckpt::os
