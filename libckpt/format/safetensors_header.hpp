// SafetensorsHeader: the JSON text at the front of a safetensors file that we write.
//
// `__metadata__` comes first. It holds the step's numbers with a fixed count of digits, so that the
// next step's header differs only at known places.
#pragma once

#include <cstdint>
#include <string>

#include "format/layout.hpp"

namespace ckpt::format {

// The most JSON that the reference implementation accepts.
inline constexpr std::uint64_t safetensors_json_bytes_max = 100'000'000;
inline constexpr std::uint64_t safetensors_length_bytes = 8;

// The header of the layout's first safetensors member, without padding.
std::string header_json(const Layout& layout, const HeaderFacts& facts);
// The facts with the longest possible text, from which the header's size is computed.
HeaderFacts widest_facts();

}  // namespace ckpt::format
