// ManifestSize: computes the size of a manifest before any part of its step is written.
//
// Exact except for checksums, which count with all their digits. Never less than what render()
// writes, and seldom over a hundredth more.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "format/shard_record.hpp"

namespace ckpt::format {

// The size of this shard's entry.
std::uint64_t manifest_entry_bytes(const ShardRecord& record);
// The size of everything else.
std::uint64_t manifest_frame_bytes(std::string_view job, std::span<const std::string> nodes);

}  // namespace ckpt::format
