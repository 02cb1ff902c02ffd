#include "os/scratch_memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace ckpt::os {

Result<ScratchMemory> ScratchMemory::map(std::uint64_t bytes) {
  if (bytes == 0) return ScratchMemory({});
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED)
    return fail(Errc::exhausted,
                fmt::format("map {} bytes of scratch memory: {}", bytes, std::strerror(errno)));
  return ScratchMemory({static_cast<std::byte*>(mapped), bytes});
}

ScratchMemory::ScratchMemory(ScratchMemory&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})) {}

ScratchMemory::~ScratchMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace ckpt::os
