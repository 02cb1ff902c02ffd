// ShardPart: the part of a manifest that one rank's writer produces: the record of the bytes, and
// the checksum of each file as written. The coordinator merges the parts of all ranks into the
// manifest.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/shard_record.hpp"

namespace ckpt::format {

struct ShardPart {
  ShardRecord record;
  std::vector<Crc32> member_crcs;  // One for each member's true bytes.
};

std::vector<std::byte> encode(const ShardPart& part);
// Errors: corruption, version_mismatch.
Result<ShardPart> decode_shard_part(std::span<const std::byte> bytes);

// "rank-00003.part"; lies in the work directory only.
std::string part_name(std::uint32_t rank);
bool is_part_name(std::string_view name);

}  // namespace ckpt::format
