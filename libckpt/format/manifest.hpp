// Manifest: the file that makes a checkpoint complete. Files without one do not count.
//
// It contains everything in the records of the shards, so that each record can be restored exactly.
// For readers that know only JSON it adds, for each tensor, its name, type, global shape, place in
// that shape, file and byte range. It is sealed. libckpt/docs/format.md lists its members.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/shard_part.hpp"

namespace ckpt::format {

inline constexpr std::size_t manifest_bytes_max = 256u << 20;
inline constexpr std::string_view manifest_name = "manifest.json";

struct Manifest {
  std::string writer;  // "libckpt 0.1.0"; for people, as is `created`.
  std::uint64_t created_unix_seconds = 0;
  std::string job;
  RunId run;
  StepId at;
  std::uint32_t world_size = 1;
  Digest members;  // Of (nodes, world size, replicas), as in reports.
  std::vector<std::string> nodes;
  std::vector<ShardPart> shards;  // By rank, all of them.
};

// Merges the parts of all ranks, in any order, and sets `writer`, but neither `created` nor the
// topology. Errors: invalid_argument (a rank is missing or given twice, or the parts are not of one
// step of one run).
Result<Manifest> merge(std::vector<ShardPart> parts);

// Errors: invalid_argument (not a result of merge), exhausted (above `manifest_bytes_max`).
Result<std::string> render(const Manifest& manifest);
// Errors: corruption (any changed byte), version_mismatch.
Result<Manifest> parse_manifest(std::string_view text);

// Errors: not_found (no such rank).
Result<ShardRecord> record_from(const Manifest& manifest, std::uint32_t rank);

}  // namespace ckpt::format
