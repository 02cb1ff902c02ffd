// PublishOrder: which work directory becomes which checkpoint, and what came of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/ids.hpp"
#include "storage/copies.hpp"

namespace ckpt::storage {

struct PublishOrder {
  std::string work_name;  // Relative to the site; from make_work_directory.
  std::string job;
  format::RunId run;
  format::StepId at;
  std::uint32_t world_size = 1;
  std::vector<Digest> digests;  // By rank: the digests of the expected records.
  // By rank: the turn whose files count. Empty: each part had only one writer.
  std::vector<std::uint32_t> turns;
  Digest members;  // This and the next are copied into the manifest.
  std::vector<std::string> nodes;
  bool is_copy = false;  // In a bucket: the copier logs it, and points `latest` to it.

  std::uint32_t turn_of(std::uint32_t rank) const { return turns.empty() ? 0 : turns.at(rank); }
};

// The attempt, for errors.
inline std::string publish_label(const PublishOrder& order) {
  return "publish step " + std::to_string(number(order.at.step));
}

// Of each rank's ShardRecord::model, by rank: equal for steps whose ranks save the same parts.
inline Digest digest_of_layouts(std::span<const Digest> models) {
  return digest_of(std::as_bytes(models));
}

struct PublishOutcome {
  std::string name;
  std::uint64_t bytes = 0;
  bool was_there = false;  // This order had already been carried out.
  ComparedCopies copies;
  std::optional<Digest> layouts;  // digest_of_layouts(). None: another call published it.
};

}  // namespace ckpt::storage
