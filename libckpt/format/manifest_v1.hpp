// ManifestV1: reads manifests of version 1, which held the whole record of every rank as JSON.
//
// Nothing writes them any more. libckpt/docs/format.md has what is different in them.
#pragma once

#include <ckpt/result.hpp>

#include "format/json.hpp"
#include "format/manifest_types.hpp"

namespace ckpt::format {

// Reads one entry of "shards". Takes the fields that all shards share from `manifest`. The record
// is validated and must have the digest beside it. Errors: corruption, version_mismatch.
Result<ManifestShard> read_shard_of_version_1(JsonReader& reader, const Manifest& manifest);

}  // namespace ckpt::format
