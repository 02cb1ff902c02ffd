// ArchiveFile: a torch archive (torch_archive.hpp) that is written to a file entry by entry.
//
//   place_entries -> each entry's bytes at `data` -> entry_header at `header` -> archive_end
//
// Headers have checksums, so they are written behind the bytes.
#pragma once

#include <ckpt/result.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.hpp"

namespace ckpt::format {

struct FileEntry {
  std::string name;  // "data/0".
  std::uint64_t bytes = 0;
  Crc32 crc = 0;
  std::uint64_t header = 0;  // In the file; its header ends where the bytes begin.
  std::uint64_t data = 0;
};

// Sets `header` and `data`, in this order. Returns where the end of the archive begins. Errors:
// invalid_argument (a name is empty or too long), exhausted (too many).
Result<std::uint64_t> place_entries(std::span<FileEntry> entries);
std::vector<std::byte> entry_header(const FileEntry& entry);
std::vector<std::byte> archive_end(std::span<const FileEntry> entries, std::uint64_t begin);

}  // namespace ckpt::format
