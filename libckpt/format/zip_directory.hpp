// ZipDirectory: reads what a zip file says about its entries, and believes only what the file bears
// out.
//
// Only what torch.save writes: stored entries (nothing is inflated, so no small file can become a
// large one), no encryption, no comment, no second disk, zip64 where sizes need it. Entries must
// not overlap one another, nor the directory.
//
//   find_zip_end(tail) -> read the directory -> parse_zip_directory -> read each local header ->
//   zip_data
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/layout.hpp"

namespace ckpt::format {

// The last bytes of a file, or all of a shorter one, are enough for find_zip_end.
inline constexpr std::size_t zip_tail_bytes = 22 + 20 + 56;
inline constexpr std::size_t zip_local_header_bytes = 30;
inline constexpr std::size_t zip_entries_max = 1'000'000;
inline constexpr std::uint64_t zip_directory_bytes_max = 256u << 20;

struct ZipEnd {
  Extent directory;  // In the file.
  std::uint64_t entries = 0;
};
// Errors: corruption (no zip file, or a damaged one), unsupported.
Result<ZipEnd> find_zip_end(std::span<const std::byte> tail, std::uint64_t file_bytes);

struct ZipEntry {
  std::string name;
  std::uint64_t header = 0;  // The first byte of its local header.
  std::uint64_t bytes = 0;
  Crc32 crc = 0;
};
// `directory` has exactly its bytes. Sorted as they lie in the file. Errors: corruption (also two
// entries of one name), unsupported (names the entry).
Result<std::vector<ZipEntry>> parse_zip_directory(std::span<const std::byte> directory,
                                                  const ZipEnd& end);

// Where the entry's bytes lie. `local_header` has its first `zip_local_header_bytes`; `end`: the
// first byte behind what may be the entry's: the next local header, or the directory. Errors:
// corruption.
Result<Extent> zip_data(std::span<const std::byte> local_header, const ZipEntry& entry,
                        std::uint64_t end);

}  // namespace ckpt::format
