#include <algorithm>
#include <ckpt/published.hpp>
#include <functional>
#include <new>
#include <tuple>

#include "client/blocking.hpp"
#include "storage/open_step.hpp"
#include "storage/places.hpp"
#include "storage/run_catalog.hpp"
#include "storage/search.hpp"

namespace ckpt {

namespace {

using storage::Checkpoint;

PublishedCheckpoint describe(const Checkpoint& checkpoint, std::string path) {
  PublishedCheckpoint found;
  found.path = std::move(path);
  found.job = checkpoint.job;
  found.step = checkpoint.at.step;
  found.timeline = checkpoint.at.timeline;
  found.world_size = checkpoint.world_size;
  found.is_abandoned = checkpoint.is_abandoned;
  found.created_unix_seconds = checkpoint.created_unix_seconds;
  found.metrics = checkpoint.metrics;
  return found;
}

void add(Published& published, const storage::FoundRun& run) {
  const storage::RunCatalog& read = run.read;
  const std::string prefix = run.name.empty() ? "" : run.name + "/";
  for (const storage::Rejected& rejected : read.catalog.rejected) {
    if (is_damage(rejected) || is_unreadable(rejected))
      published.damage.push_back(prefix + rejected.name + ": " + rejected.reason);
  }
  if (run.name.empty()) {
    published.history_lost = read.history_problem;
  } else if (!read.history_problem.empty()) {
    // Which of its checkpoints may be restored is not known; those of the others are.
    published.damage.push_back(run.name + ": " + read.history_problem);
    return;
  }
  for (const Checkpoint& checkpoint : read.catalog.checkpoints) {
    if (read.run && checkpoint.run != *read.run) continue;
    published.checkpoints.insert(published.checkpoints.begin(),
                                 describe(checkpoint, os::join(run.directory, checkpoint.name)));
  }
}

// Both copies of a step are listed, the nearest first.
Task<Published> list_places(storage::Site site) {
  Published published;
  CKPT_CO_TRY(auto found, co_await storage::find_runs(std::move(site)));
  std::ranges::reverse(found.runs);  // Each is put before those that are there.
  for (const storage::FoundRun& run : found.runs) {
    const std::string lost = std::exchange(published.history_lost, {});
    add(published, run);
    if (published.history_lost.empty()) published.history_lost = lost;
  }
  published.damage.insert(published.damage.begin(), found.unreadable.begin(),
                          found.unreadable.end());
  std::vector<PublishedCheckpoint> sorted;
  sorted.reserve(published.checkpoints.size());
  for (PublishedCheckpoint& checkpoint : published.checkpoints) {
    const auto is_older = [&](const PublishedCheckpoint& other) {
      return std::tuple(other.timeline, other.step) <
             std::tuple(checkpoint.timeline, checkpoint.step);
    };
    const auto place = std::ranges::find_if(sorted, is_older);
    sorted.insert(place, std::move(checkpoint));
  }
  published.checkpoints = std::move(sorted);
  co_return published;
}

Task<Published> list(os::FileSystem& files, Clock& clock, std::string path) {
  Published published;
  const storage::Site site(files, clock, path);
  CKPT_CO_TRY(const storage::Places places, storage::parse_places(path));
  if (places.second) {
    auto both = co_await list_places(site);
    co_return both;
  }
  const auto itself = co_await storage::OpenStep::at(site);
  if (itself) {
    const Checkpoint checkpoint = storage::describe(*itself->manifest(), {});
    published.checkpoints.push_back(describe(checkpoint, path));
    co_return published;
  }
  if (itself.error().code() != Errc::not_found) co_return fail(Error(itself.error()));
  CKPT_CO_TRY(const auto found, co_await storage::find_runs(site));
  published.damage = found.unreadable;
  for (const storage::FoundRun& run : found.runs) add(published, run);
  if (found.runs.size() > 1) {
    std::ranges::sort(published.checkpoints, std::greater<>(), [](const auto& each) {
      return std::tuple(each.created_unix_seconds, each.step, each.path);
    });
  }
  co_return published;
}

using Members = std::vector<std::vector<MemberFile>>;

Task<Members> list_files(storage::Site site) {
  CKPT_CO_TRY(const auto step, co_await storage::OpenStep::at(site));
  Members members;
  for (auto& files : storage::tensor_files(step)) {
    std::vector<MemberFile>& own = members.emplace_back();
    for (storage::TensorFile& file : files)
      own.push_back({std::move(file.archive), std::move(file.path)});
  }
  co_return members;
}

// Every call from a trainer blocks, and ends in a Result.
template <class T, class Start>
Result<T> ask_storage(const Start& start) {
  try {
    return client::run_blocking<T>(start);
  } catch (const std::bad_alloc&) {
    return fail(Errc::exhausted, "out of memory");
  } catch (const std::exception& error) {
    return fail(Errc::io, error.what());
  }
}

// A restore waits for it, and memory may have all that it needs.
constexpr std::chrono::seconds hint_limit{5};

Task<std::uint64_t> look_for_slot_bytes(storage::Site site, std::uint32_t rank) {
  CKPT_CO_TRY(const auto names, co_await storage::list_steps(site));
  for (const std::string& name : names) {
    const auto manifest = co_await storage::read_manifest(site, name);
    if (!manifest) continue;
    const auto shard = format::shard_of(**manifest, rank);
    co_return shard ? shard->slot_bytes : 0;
  }
  co_return std::uint64_t{0};
}

Task<std::uint64_t> look_in_places(os::FileSystem& files, Clock& clock, std::string dir,
                                   std::uint32_t rank) {
  CKPT_CO_TRY(const storage::Places places, storage::parse_places(dir));
  for (const std::string& directory : places.directories()) {
    const auto found = co_await look_for_slot_bytes(storage::Site(files, clock, directory), rank);
    if (found && *found > 0) co_return found;
  }
  co_return std::uint64_t{0};
}

}  // namespace

std::uint64_t newest_slot_bytes(std::string_view directory, std::uint32_t rank) {
  try {
    const auto found = client::run_blocking<std::uint64_t>(
        [&](os::FileSystem& files, Clock& clock) {
          return look_in_places(files, clock, std::string(directory), rank);
        },
        hint_limit);
    return found ? *found : 0;
  } catch (const std::exception&) {
    return 0;
  }
}

Result<Published> list_published(std::string_view path) {
  return ask_storage<Published>(
      [&](os::FileSystem& files, Clock& clock) { return list(files, clock, std::string(path)); });
}

Result<Members> list_members(std::string_view checkpoint) {
  return ask_storage<Members>([&](os::FileSystem& files, Clock& clock) {
    return list_files(storage::Site(files, clock, std::string(checkpoint)));
  });
}

}  // namespace ckpt
