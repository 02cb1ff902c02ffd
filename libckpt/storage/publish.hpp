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

#include "format/ids.hpp"
#include "storage/publish_order.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// Creates the directory for the shards of one attempt. Returns its name. Errors: exhausted (a full
// disk), invalid_argument (the name is taken: use another attempt), io.
Task<std::string> make_work_directory(Site site, format::StepId at, std::uint64_t attempt);

// Errors: not_found (a part is missing: is the directory shared by all nodes?), corruption (a part
// or a file differs from its rank's report), invalid_argument (a newer timeline has published this
// step), exhausted, io. After an error, discard the work directory and try again with a new one: a
// file whose sync failed is never synced again.
Task<PublishOutcome> publish(Site site, PublishOrder order);

}  // namespace ckpt::storage
