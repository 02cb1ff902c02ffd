// SafetensorsHeader: the JSON text at the front of a safetensors file that we write.
//
// `__metadata__` comes first, and in it the step's numbers with a fixed count of digits, so that
// the header of the next step differs only in bytes whose place is known.
#pragma once

#include <cstdint>
#include <string>

#include "format/layout.hpp"

namespace ckpt::format {

// What the reference implementation accepts at most, for the JSON text.
inline constexpr std::uint64_t safetensors_json_bytes_max = 100'000'000;
inline constexpr std::uint64_t safetensors_length_bytes = 8;

// Of the layout's first safetensors member, without padding.
std::string header_json(const Layout& layout, const HeaderFacts& facts);
// The facts whose text is the longest possible: what the header's size is computed with.
HeaderFacts widest_facts();

}  // namespace ckpt::format
