// TorchArchive: a zip file, laid out in the Slot, that stock torch.load opens.
//
// Entries are stored uncompressed, each after its header, at a multiple of 4 KiB (64 bytes for
// smaller ones), so that a reader can map them. All places follow from names and sizes. Checksums
// are known only with the entries' bytes, so the headers are written last. The content of the
// entries is between the caller and torch: no pickle is made or read here.
#pragma once

#include <ckpt/result.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "format/layout_types.hpp"

namespace ckpt::format {

inline constexpr std::string_view archive_separator = "//";

// Places `entries`, given their names and sizes, in an archive that begins at `begin` in the Slot;
// returns its size. The tensor "model.pt//data/0" is the entry "data/0". Errors: invalid_argument
// (an entry's name is empty or too long), exhausted (too many).
Result<std::uint64_t> place_archive(std::span<TensorPlace> entries, std::uint64_t begin);

// Completes every archive of the Slot around its entries' bytes: headers with checksums, and the
// directory at the end. The layout must come from make_layout.
void finish_archives(const Layout& layout, std::span<std::byte> slot);

}  // namespace ckpt::format
