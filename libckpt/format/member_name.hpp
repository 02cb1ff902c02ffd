// MemberName: the names of a rank's files, made of integers only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ckpt::format {

// Makes "rank-00003.safetensors", and checks that a name is of this form for this rank.
std::string member_name(std::uint32_t rank, std::string_view extension);
bool is_member_name(std::string_view name, std::optional<std::uint32_t> rank = std::nullopt);
// The same, or the name of the rank's part, or of a packed file (frame_table.hpp).
bool is_name_of_rank(std::string_view name, std::optional<std::uint32_t> rank = std::nullopt);

}  // namespace ckpt::format
