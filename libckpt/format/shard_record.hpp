// ShardRecord: everything that must be known about a Slot's bytes to serve them: who wrote what,
// when, and the checksum of each piece. It is kept beside the bytes wherever a copy lies, sent
// ahead of them, and embedded in the manifest; with it any copy proves itself.
#pragma once

#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.hpp"
#include "format/layout.hpp"

namespace ckpt::format {

// RunId: the UUID in the directory's marker, or made from job and uid where there is no directory.
using RunId = Digest;

// StepId: a step of one timeline. Ordered as recovery prefers them.
struct StepId {
  std::uint64_t timeline = 0;
  Step step{};
  auto operator<=>(const StepId&) const = default;
};

// ShardId: one rank's bytes of one step, within a run.
struct ShardId {
  StepId at;
  std::uint32_t rank = 0;
  auto operator<=>(const ShardId&) const = default;
};

struct ShardRecord {
  std::string job;
  RunId run;
  ShardId id;
  std::uint32_t world_size = 1;
  Digest model;  // fingerprint(layout).
  Layout layout;
  std::uint64_t blob_bytes = 0;  // Used of layout.blob_capacity.
  std::vector<Extent> blobs;     // In the Slot, parallel to blob_names.
  std::vector<std::string> blob_names;
  std::uint64_t bytes = 0;        // Of the Slot that are covered: members with their padding.
  std::uint64_t chunk_bytes = 0;  // 4 MiB, smaller in simulations.
  std::vector<Crc32> chunk_crcs;  // div_ceil(bytes, chunk_bytes) of them; the last may be short.

  Extent chunk(std::size_t index) const;  // In the Slot.
};

inline constexpr std::size_t blobs_max = 65'536;

// Errors: corruption (a layout that is none, extents outside it, a wrong number of checksums). What
// decode returns was validated.
Status validate(const ShardRecord& record);

// Digest of the encoded record: the identity of a copy. Copies agree when their digests do.
Digest digest_of(const ShardRecord& record);

// Errors of decode: corruption (truncated, overflowing, inconsistent); nothing is allocated before
// it was checked against what the bytes can hold.
std::vector<std::byte> encode(const ShardRecord& record);
Result<ShardRecord> decode_shard_record(std::span<const std::byte> bytes);

// The bytes a file of this shard has, member by member: extents of the Slot cut to the true sizes.
std::vector<Extent> member_extents(const ShardRecord& record);

}  // namespace ckpt::format
