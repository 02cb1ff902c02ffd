// Manifest: the file that makes a checkpoint complete: without it the files beside it do not count.
//
// It says all that the records of the shards say, so that each can be had back exactly, and more
// for readers that know only JSON: per tensor its name, type, global shape, place in that shape,
// file and byte range. It is sealed. libckpt/docs/format.md has it member by member.
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

// From the parts of all ranks, in any order. Errors: invalid_argument (a rank is missing or there
// twice, or they are not of one step of one run). `writer` is set, `created` and topology are not.
Result<Manifest> merge(std::vector<ShardPart> parts);

// Errors: invalid_argument (not what merge returns), exhausted (above `manifest_bytes_max`).
Result<std::string> render(const Manifest& manifest);
// Errors: corruption (any byte that changed), version_mismatch.
Result<Manifest> parse_manifest(std::string_view text);

// Errors: not_found (no such rank).
Result<ShardRecord> record_from(const Manifest& manifest, std::uint32_t rank);

}  // namespace ckpt::format
