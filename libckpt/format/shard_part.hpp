// ShardPart: the file that one rank's writer leaves in a checkpoint beside the rank's files: the
// record of the bytes, and the checksum of each file as written.
//
// It lies in the checkpoint as "rank-00003.part". The manifest has its seal.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/part_front.hpp"

namespace ckpt::format {

// PackedFile: a packed file as it is stored.
struct PackedFile {
  std::uint64_t bytes = 0;
  TableSeal table;
  bool operator==(const PackedFile&) const = default;
};

struct ShardPart {
  ShardRecord record;
  std::vector<Crc32> member_crcs;  // One for each file's bytes, as they are stored.
  // One for each member, none for a plain file; empty: all are plain.
  std::vector<std::optional<PackedFile>> packed;
};

// PartSeal: covers every byte of a part. The front's digest covers the blocks' digests.
struct PartSeal {
  std::uint64_t bytes = 0;  // The whole file.
  std::uint64_t front_bytes = 0;
  Digest front_digest;
  bool operator==(const PartSeal&) const = default;
};

// The shard's files: their names, sizes and contents.
std::vector<StoredFile> files_of(const ShardPart& part);

std::vector<std::byte> encode(const ShardPart& part);
// Errors: corruption (any byte that the seal does not cover), version_mismatch.
Result<ShardPart> decode_shard_part(std::span<const std::byte> bytes, const PartSeal& seal);

// "rank-00003.part".
std::string part_name(std::uint32_t rank);
bool is_part_name(std::string_view name, std::optional<std::uint32_t> rank = std::nullopt);

}  // namespace ckpt::format
