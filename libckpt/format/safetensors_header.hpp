// SafetensorsHeader: the JSON text at the front of a safetensors file that we write.
//
// `__metadata__` comes first. It holds the step's numbers with a fixed count of digits, so that the
// next step's header differs only at known places.
#pragma once

#include <ckpt/result.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/layout_types.hpp"

namespace ckpt::format {

// The most JSON that the reference implementation accepts.
inline constexpr std::uint64_t safetensors_json_bytes_max = 100'000'000;
inline constexpr std::uint64_t safetensors_length_bytes = 8;

// The facts that the header of a rank's safetensors file records besides the tensors.
struct HeaderFacts {
  std::string job;  // UTF-8, at most `job_bytes_max`.
  std::string run;  // to_hex(RunId).
  std::uint64_t timeline = 0;
  Step step{};
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
};

// The header of the layout's first safetensors member, without padding.
std::string header_json(const Layout& layout, const HeaderFacts& facts);
// The facts with the longest possible text, from which the header's size is computed.
HeaderFacts widest_facts();

// Writes the header of the layout's safetensors member: exactly `header_bytes`, whatever the facts.
// Called once per layout; `patch_header` then writes a step's numbers into it without allocating.
// Errors: invalid_argument (a fact is too long or not UTF-8).
Result<std::vector<std::byte>> render_header(const Layout& layout, const HeaderFacts& facts);
void patch_header(std::span<std::byte> header, std::uint64_t timeline, Step step);

}  // namespace ckpt::format
