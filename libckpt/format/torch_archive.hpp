// TorchArchive: a zip file, laid out in the Slot, that stock torch.load opens.
//
// Entries are stored, not compressed, each behind its header, at a multiple of 4 KiB (of 64 bytes
// where they are smaller than that), so that a reader can map them. All places follow from names
// and sizes; the checksums are not known before the entries' bytes are, so the headers are written
// last. What the entries mean is between the caller and torch: no pickle is made or read here.
#pragma once

#include <ckpt/result.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "format/layout.hpp"

namespace ckpt::format {

inline constexpr std::string_view archive_separator = "//";

// Fills in the offsets of `entries`, of which names and sizes are given, for an archive that begins
// at `begin` in the Slot; returns its size. The tensor "model.pt//data/0" is the entry "data/0".
// Errors: invalid_argument (an entry's name is empty or too long), exhausted (too many).
Result<std::uint64_t> place_archive(std::span<TensorPlace> entries, std::uint64_t begin);

// Writes what is not an entry's bytes into every archive of the Slot: headers with checksums, and
// the directory behind them. The layout is one of make_layout.
void finish_archives(const Layout& layout, std::span<std::byte> slot);

}  // namespace ckpt::format
