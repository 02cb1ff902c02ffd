// AgreementLimits: how long the texts are at most that nodes send one another in reports, decrees
// and starts.
#pragma once

#include <cstddef>

namespace ckpt::format {

inline constexpr std::size_t node_name_bytes_max = 256;
inline constexpr std::size_t text_bytes_max = 64 * 1024;  // Sentences for people.

}  // namespace ckpt::format
