// Publish: turns a work directory with all shards into a checkpoint, or leaves everything as it
// was.
//
//   fronts of the parts checked -> manifest -> work directory synced -> renamed -> parent synced ->
//   `latest`
//
// Before the rename nobody takes the directory for a checkpoint. After the parent's sync the step
// is DURABLE, and no later failure undoes that. If the step already exists, the two directories are
// exchanged atomically, and only then is the old one removed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/manifest.hpp"
#include "storage/copies.hpp"
#include "storage/site.hpp"

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

struct PublishOutcome {
  std::string name;
  std::uint64_t bytes = 0;
  bool was_there = false;  // This order had already been carried out.
  ComparedCopies copies;
};

// Creates the directory for the shards of one attempt. Returns its name. Errors: exhausted (a full
// disk), invalid_argument (the name is taken: use another attempt), io.
Task<std::string> make_work_directory(Site site, format::StepId at, std::uint64_t attempt);

// Errors: not_found (a part is missing: is the directory shared by all nodes?), corruption (a part
// or a file differs from its rank's report), invalid_argument (a newer timeline has published this
// step), exhausted, io. After an error, discard the work directory and try again with a new one: a
// file whose sync failed is never synced again.
Task<PublishOutcome> publish(Site site, PublishOrder order);

}  // namespace ckpt::storage
