// ManifestTypes: what a manifest says of its checkpoint, and of each rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "format/metrics.hpp"
#include "format/shard_part.hpp"

namespace ckpt::format {

inline constexpr std::string_view manifest_name = "manifest.json";

// One rank's entry. Its part is the file part_name(rank).
struct ManifestShard {
  std::uint32_t rank = 0;
  std::uint64_t slot_bytes = 0;   // A Slot that takes these bytes has at least this size.
  Digest record_digest;           // The identity of the copy: the part has its record.
  std::string folder;             // Below the manifest's: has its files. Empty: beside it.
  PartSeal part;                  // Empty in version 1.
  std::vector<StoredFile> files;  // By member.
  // Version 1 had no parts: the contents of one.
  std::shared_ptr<const ShardPart> embedded;
};

struct Manifest {
  std::string writer;  // "libckpt 0.1.0"; for people, as is `created`.
  std::uint64_t created_unix_seconds = 0;
  std::string job;
  RunId run;
  StepId at;
  std::uint32_t world_size = 1;
  Digest members;  // The digest of (nodes, world size, replicas), as in reports.
  std::vector<std::string> nodes;
  Metrics metrics;                    // Those of rank 0; often none.
  std::vector<ManifestShard> shards;  // By rank, all of them.
};

}  // namespace ckpt::format
