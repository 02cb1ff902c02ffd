// ScratchMemory: memory for a short time, of which only the pages that are written take room.
#pragma once

#include <ckpt/result.hpp>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ckpt::os {

class ScratchMemory {
 public:
  // Errors: exhausted (the machine refuses).
  static Result<ScratchMemory> map(std::uint64_t bytes);
  ScratchMemory(ScratchMemory&& other) noexcept;
  ScratchMemory& operator=(ScratchMemory&&) = delete;
  ~ScratchMemory();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit ScratchMemory(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

}  // namespace ckpt::os
