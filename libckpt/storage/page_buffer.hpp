// PageBuffer: memory that begins on a page, as direct reads want it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/units.hpp"

namespace ckpt::storage {

class PageBuffer {
 public:
  explicit PageBuffer(std::uint64_t bytes) : storage_(bytes + page_bytes) {
    const auto start = reinterpret_cast<std::uintptr_t>(storage_.data());
    bytes_ = std::span(storage_).subspan(align_up(start, page_bytes) - start, bytes);
  }
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;
  std::span<std::byte> first(std::uint64_t bytes) { return bytes_.first(bytes); }

 private:
  std::vector<std::byte> storage_;
  std::span<std::byte> bytes_;
};

}  // namespace ckpt::storage
