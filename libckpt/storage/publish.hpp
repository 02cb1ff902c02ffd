// Publish: turns a work directory that holds all shards into a checkpoint, or leaves all as it was.
//
//   parts checked -> manifest -> work directory synced -> renamed -> parent synced -> `latest`
//
// Before the rename nobody takes the directory for a checkpoint; after the sync of the parent the
// step is DURABLE, and nothing that fails later takes that back. A step that stands there already
// is exchanged for the new one in one atomic change, and only then retired.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/manifest.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

struct PublishOrder {
  std::string work_name;  // Below the site: made by make_work_directory.
  std::string job;
  format::RunId run;
  format::StepId at;
  std::uint32_t world_size = 1;
  std::vector<Digest> digests;  // By rank: of the records that must lie there.
  // By rank: the turn that counts. Empty: each part had one writer, and no other left anything.
  std::vector<std::uint32_t> turns;
  Digest members;  // The two are copied into the manifest.
  std::vector<std::string> nodes;

  std::uint32_t turn_of(std::uint32_t rank) const { return turns.empty() ? 0 : turns.at(rank); }
};

struct Published {
  std::string name;
  std::uint64_t bytes = 0;
  bool was_there = false;  // This very order was carried out before.
};

// Makes the directory that the shards of one attempt are written into. Returns its name.
// Errors: exhausted (a full disk), invalid_argument (the name is taken: draw another), io.
Task<std::string> make_work_directory(Site site, format::StepId at, std::uint64_t attempt);

// Errors: not_found (a part is missing: is the directory shared by all nodes?), corruption (a part
//         or a file is not what its rank reported), invalid_argument (a newer timeline has
//         published this step), exhausted, io. After an error, discard the work directory and try
//         again with a new one: a file whose sync failed is never synced again.
Task<Published> publish(Site site, PublishOrder order);

}  // namespace ckpt::storage
