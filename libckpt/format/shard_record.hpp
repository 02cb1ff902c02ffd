// ShardRecord: everything needed to serve a Slot's bytes: who wrote them, what they are, and the
// checksum of each piece. It is kept beside every copy of the bytes, sent ahead of them, and
// embedded in the manifest. With it, any copy can be verified.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.hpp"
#include "format/codec.hpp"
#include "format/ids.hpp"
#include "format/layout.hpp"

namespace ckpt::format {

struct ShardRecord {
  std::string job;
  RunId run;
  ShardId id;
  std::uint32_t world_size = 1;
  Digest model;  // fingerprint(layout).
  Layout layout;
  std::uint64_t blob_bytes = 0;  // The used part of layout.blob_capacity.
  std::vector<Extent> blobs;     // In the Slot, parallel to blob_names.
  std::vector<std::string> blob_names;
  std::uint64_t bytes = 0;        // The covered part of the Slot: members with their padding.
  std::uint64_t chunk_bytes = 0;  // 4 MiB; smaller in simulations.
  std::vector<Crc32> chunk_crcs;  // div_ceil(bytes, chunk_bytes) of them; the last may be short.

  Extent chunk(std::size_t index) const;  // In the Slot.
};

inline constexpr std::size_t blobs_max = 65'536;

// Errors: corruption (an invalid layout, extents outside it, a wrong number of checksums). Records
// that decode returns are valid.
Status validate(const ShardRecord& record);
// The same without the layout's tensors, which may be elsewhere.
Status validate_frame(const ShardRecord& record);

// The digest of the encoded record identifies a copy: copies agree when their digests do.
Digest digest_of(const ShardRecord& record);
// The digest that a manifest of version 1 has of it: its records had no pieces.
Digest digest_of_version_1(const ShardRecord& record);

// Errors of decode: corruption (truncated, overflowing, inconsistent). Sizes are checked against
// the remaining bytes before anything is allocated.
std::vector<std::byte> encode(const ShardRecord& record);
Result<ShardRecord> decode_shard_record(std::span<const std::byte> bytes);

// Its fields as they stand in other records. Nothing that is read has been validated.
void write_fields(Writer& writer, const ShardRecord& record);
ShardRecord read_fields(Reader& reader);

// The extents of a shard's files in the Slot, member by member, cut to their true sizes.
std::vector<Extent> member_extents(const ShardRecord& record);

}  // namespace ckpt::format
