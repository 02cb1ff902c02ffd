// ByteText: sizes as people write them, the same in options, flags and commands.
//
// Units with an i, and single letters, count by 1024: 64GiB, 64G. Those with a B alone count by
// 1000: 64GB.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ckpt {

// For messages: "such as ...".
inline constexpr std::string_view byte_examples = "1048576, 512MiB, 64GiB or 500MB (by 1000)";

// A whole number with a unit or without, and blanks between them. Nothing: it is no such text, or
// beyond 63 bits.
std::optional<std::uint64_t> parse_byte_text(std::string_view text);
// In the largest unit that leaves a whole number; parse_byte_text() reads it back.
std::string show_byte_text(std::uint64_t bytes);

}  // namespace ckpt
