#include <ckpt/published.hpp>
#include <new>

#include "client/blocking.hpp"
#include "storage/run_catalog.hpp"

namespace ckpt {

namespace {

using storage::Rejected;

Published describe(const std::string& directory, const storage::RunCatalog& read) {
  Published published;
  for (const storage::Checkpoint& checkpoint : read.catalog.checkpoints) {
    if (read.run && checkpoint.run != *read.run) continue;
    PublishedCheckpoint found;
    found.path = os::join(directory, checkpoint.name);
    found.job = checkpoint.job;
    found.step = checkpoint.at.step;
    found.timeline = checkpoint.at.timeline;
    found.world_size = checkpoint.world_size;
    found.is_abandoned = checkpoint.is_abandoned;
    found.metrics = checkpoint.metrics;
    published.checkpoints.insert(published.checkpoints.begin(), std::move(found));
  }
  for (const Rejected& rejected : read.catalog.rejected) {
    if (is_damage(rejected)) published.damage.push_back(rejected.name + ": " + rejected.reason);
  }
  published.history_lost = read.history_problem;
  return published;
}

Result<Published> list(const std::string& directory) {
  CKPT_TRY(const auto read,
           client::run_blocking<storage::RunCatalog>([&](os::FileSystem& files, Clock& clock) {
             return storage::read_run_catalog({files, clock, directory});
           }));
  return describe(directory, read);
}

}  // namespace

Result<Published> list_published(std::string_view directory) {
  try {
    return list(std::string(directory));
  } catch (const std::bad_alloc&) {
    return fail(Errc::exhausted, "out of memory");
  } catch (const std::exception& error) {
    return fail(Errc::io, error.what());
  }
}

}  // namespace ckpt
