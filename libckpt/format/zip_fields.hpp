// ZipFields: the sizes and values of the zip format that its reader and its writer share. The names
// are those of APPNOTE 6.3.10.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ckpt::format {

inline constexpr std::size_t zip_directory_record_bytes = 46;  // Without its name and its extras.
inline constexpr std::size_t zip_end_bytes = 22;
inline constexpr std::uint32_t in_zip64 = UINT32_MAX;  // "See the zip64 extra."
inline constexpr std::uint16_t zip64_extra = 1;

}  // namespace ckpt::format
