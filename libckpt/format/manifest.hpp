// Manifest: the file that makes a checkpoint complete. Files without one do not count.
//
// It is the small root of a checkpoint: whose step it is, and for each rank its files and the seal
// of its part. The part has everything else about the rank's bytes. It is sealed, so that it covers
// every byte of the checkpoint. libckpt/docs/format.md lists its members.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "format/manifest_types.hpp"
#include "format/part_front.hpp"

namespace ckpt::format {

// Some 350 bytes for each rank: enough for 700,000 ranks.
inline constexpr std::size_t manifest_bytes_max = 256u << 20;

// A rank's entry for a part whose front was read.
ManifestShard entry_of(const PartFront& front, const PartSeal& seal);

// Errors: invalid_argument (a rank is missing or not in its place), exhausted (above
// `manifest_bytes_max`).
Result<std::string> render(const Manifest& manifest);
// Errors: corruption (any changed byte), version_mismatch.
Result<Manifest> parse_manifest(std::string_view text);

// Those of all files that it proves to be there, parts included.
std::set<std::string> file_names(const Manifest& manifest);

// Errors: not_found (no such rank).
Result<ManifestShard> shard_of(const Manifest& manifest, std::uint32_t rank);
// Errors: corruption (the part is that of another step, rank or run than the manifest's).
Status check_belongs(const Manifest& manifest, std::uint32_t rank, const ShardRecord& record);

}  // namespace ckpt::format
