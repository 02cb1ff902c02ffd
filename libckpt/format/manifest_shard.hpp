// ManifestShard: reads and writes one rank's entry in the manifest.
#pragma once

#include <ckpt/result.hpp>
#include <string>

#include "format/json.hpp"
#include "format/manifest.hpp"

namespace ckpt::format {

void append_shard(std::string& out, const ShardPart& shard);

// Takes the fields that all shards share from `manifest`. The record is validated and must have the
// digest beside it. Errors: corruption, version_mismatch.
Result<ShardPart> read_shard(JsonReader& reader, const Manifest& manifest);

}  // namespace ckpt::format
