#include <algorithm>
#include <ckpt/published.hpp>
#include <functional>
#include <new>

#include "client/blocking.hpp"
#include "storage/run_catalog.hpp"
#include "storage/step_directory.hpp"

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

// A restore waits for it, and memory may have all that it needs.
constexpr std::chrono::seconds hint_limit{5};

Task<std::uint64_t> look_for_slot_bytes(storage::Site site, std::uint32_t rank) {
  CKPT_CO_TRY(const auto entries, co_await site.files().list(site.at(".")));
  std::vector<storage::StepDirectory> steps;
  for (const os::DirectoryEntry& entry : entries) {
    const auto parsed = storage::parse_step_directory(entry.name);
    if (parsed && entry.kind == os::EntryKind::directory) steps.push_back(*parsed);
  }
  std::ranges::sort(steps, std::greater(), [](const storage::StepDirectory& each) {
    return std::pair(each.step, each.generation);
  });
  for (const storage::StepDirectory& each : steps) {
    const std::string name = storage::step_directory_name(each.step, each.generation);
    const auto manifest = co_await storage::read_manifest(site, name);
    if (!manifest) continue;
    const auto shard = format::shard_of(**manifest, rank);
    co_return shard ? shard->slot_bytes : 0;
  }
  co_return std::uint64_t{0};
}

}  // namespace

std::uint64_t newest_slot_bytes(std::string_view directory, std::uint32_t rank) {
  try {
    const auto found = client::run_blocking<std::uint64_t>(
        [&](os::FileSystem& files, Clock& clock) {
          return look_for_slot_bytes({files, clock, std::string(directory)}, rank);
        },
        hint_limit);
    return found ? *found : 0;
  } catch (const std::exception&) {
    return 0;
  }
}

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
