// ManifestSize: how many bytes a manifest will take, before anything of its step is written.
//
// Exact but for checksums, which are counted with all their digits: never less than what render()
// writes, and seldom more than a hundredth above it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "format/shard_record.hpp"

namespace ckpt::format {

// Of the entry of this shard.
std::uint64_t manifest_entry_bytes(const ShardRecord& record);
// Of all the rest.
std::uint64_t manifest_frame_bytes(std::string_view job, std::span<const std::string> nodes);

}  // namespace ckpt::format
