// TextBytes: a text as the bytes of a small file.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace ckpt::storage {

inline std::vector<std::byte> bytes_of_text(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

}  // namespace ckpt::storage
