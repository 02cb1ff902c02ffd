#include "storage/catalog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "base/assert.hpp"
#include "storage/catalog_cache.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

using format::Manifest;

bool is_damage(const Rejected& rejected) {
  return rejected.code != Errc::invalid_argument && rejected.code != Errc::not_found &&
         !is_unreadable(rejected);
}

std::optional<Step> step_of(const Rejected& rejected) {
  const auto parsed = parse_step_directory(rejected.name);
  if (!parsed) return std::nullopt;
  return parsed->step;
}

bool is_unreadable(const Rejected& rejected) {
  return is_unreadable(rejected.code);
}

bool is_unreadable(Errc code) {
  return code == Errc::io || code == Errc::exhausted || code == Errc::unavailable ||
         code == Errc::cancelled;
}

std::string misplaced_reason(std::string_view name, Step step) {
  const auto parsed = parse_step_directory(name);
  if (parsed && parsed->step == step) return {};
  return fmt::format("its manifest is of step {}, not of what its name says", number(step));
}

namespace {

// A step gets its name after its manifest. So shards without one are the remains of a checkpoint,
// while a directory without any file of ours is foreign or empty.
Task<void> refuse_shards_alone(os::FileSystem& files, std::string directory) {
  const auto entries = co_await files.list(directory);
  if (!entries && entries.error().code() == Errc::not_found) co_return Status();
  if (!entries) co_return fail(entries.error());
  const bool has_shards = std::ranges::any_of(*entries, [](const os::DirectoryEntry& entry) {
    return format::is_name_of_rank(entry.name);
  });
  if (!has_shards) co_return Status();
  co_return fail(Errc::corruption, fmt::format("read {}: it has files of a checkpoint, and no {}",
                                               os::display(directory), format::manifest_name));
}

}  // namespace

Task<std::shared_ptr<const Manifest>> read_manifest_at(os::FileSystem& files, std::string directory,
                                                       Compute* compute) {
  const std::string path = os::join(directory, format::manifest_name);
  const auto bytes = co_await files.read_small(path, format::manifest_bytes_max);
  // Missing, a link, or a directory.
  const bool is_no_file = !bytes && (bytes.error().code() == Errc::not_found ||
                                     bytes.error().code() == Errc::invalid_argument);
  if (is_no_file) CKPT_CO_CHECK(co_await refuse_shards_alone(files, directory));
  if (!bytes) co_return fail(bytes.error());
  const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  std::function<Result<Manifest>()> parse = [text] { return format::parse_manifest(text); };
  auto manifest = co_await compute_on(compute, std::move(parse));
  if (!manifest) co_return fail(std::move(manifest).error().context("read " + os::display(path)));
  co_return std::make_shared<const Manifest>(std::move(manifest).value());
}

Task<std::shared_ptr<const Manifest>> read_manifest(Site site, std::string name) {
  auto manifest = co_await read_manifest_at(site.files(), site.at(name), site.compute());
  co_return manifest;
}

Task<bool> has_manifest(Site site, std::string name) {
  CKPT_ASSERT(parse_step_directory(name).has_value());
  const auto found = co_await site.files().status(os::join(site.at(name), format::manifest_name));
  if (!found && found.error().code() == Errc::not_found) co_return false;
  if (!found) co_return fail(found.error());
  co_return true;
}

std::string shard_directory(std::string_view step_directory, const format::ManifestShard& shard) {
  return shard.folder.empty() ? std::string(step_directory)
                              : os::join(step_directory, shard.folder);
}

Checkpoint describe(const Manifest& manifest, std::string name) {
  Checkpoint checkpoint;
  checkpoint.at = manifest.at;
  checkpoint.name = std::move(name);
  checkpoint.job = manifest.job;
  checkpoint.run = manifest.run;
  checkpoint.world_size = manifest.world_size;
  checkpoint.created_unix_seconds = manifest.created_unix_seconds;
  checkpoint.metrics = manifest.metrics;
  for (const format::ManifestShard& shard : manifest.shards) {
    checkpoint.digests.push_back(shard.record_digest);
    checkpoint.bytes += shard.part.bytes;
    for (const format::StoredFile& file : shard.files) checkpoint.bytes += file.bytes;
  }
  return checkpoint;
}

Task<Checkpoint> describe_on(Compute* compute, std::shared_ptr<const Manifest> manifest,
                             std::string name) {
  std::function<Result<Checkpoint>()> work = [manifest, name] { return describe(*manifest, name); };
  auto checkpoint = co_await compute_on(compute, std::move(work));
  co_return checkpoint;
}

Task<bool> has_gone(os::FileSystem& files, std::string directory, std::optional<Checkpoint> seen,
                    Compute* compute) {
  const auto now = co_await read_manifest_at(files, directory, compute);
  if (now) {
    CKPT_CO_TRY(const Checkpoint there, co_await describe_on(compute, *now, std::string()));
    co_return !seen || std::tie(there.at, there.run, there.digests, there.created_unix_seconds) !=
                           std::tie(seen->at, seen->run, seen->digests, seen->created_unix_seconds);
  }
  // A removed step loses its name, or in a bucket its manifest, before its files.
  const bool has_none = now.error().code() == Errc::not_found;
  if (has_none && files.objects(directory) != nullptr) co_return true;
  const auto status = co_await files.status(directory);
  co_return !status && status.error().code() == Errc::not_found;
}

namespace {

// How many rounds a failed read is repeated, and how long after the first one.
constexpr int rounds_max = 3;
constexpr Duration pause = std::chrono::milliseconds(200);

// Returns true if the disk may soon do better. A full disk cannot sync a directory. Permissions
// stay as they are, and a bucket's server that has not answered for a minute, or never, was waited
// for long enough.
bool may_pass(const Error& error) {
  const std::error_code cause = error.cause();
  if (cause == std::errc::permission_denied || cause == std::errc::operation_not_permitted ||
      cause == std::errc::timed_out || cause == std::errc::not_connected)
    return false;
  return error.code() == Errc::io || error.code() == Errc::exhausted;
}

std::string wrong_size(const ListedFile& file, std::uint64_t bytes) {
  return fmt::format("{} has {} bytes, its manifest says {}", file.name, bytes, file.bytes);
}

// The same for a bucket, where a request takes longer, and one lists a thousand.
Task<void> check_objects(Site site, std::shared_ptr<const Described> described) {
  const std::string directory = site.at(described->checkpoint.name);
  CKPT_CO_TRY(const auto entries, co_await site.objects()->list_below(directory));
  std::map<std::string_view, std::uint64_t> there;
  for (const os::ObjectEntry& entry : entries) there.emplace(entry.name, entry.bytes);
  for (const ListedFile& file : described->files) {
    const auto found = there.find(file.name);
    if (found == there.end()) co_return fail(Errc::corruption, file.name + " is missing");
    if (found->second != file.bytes)
      co_return fail(Errc::corruption, wrong_size(file, found->second));
  }
  co_return Status();
}

// Checks that every file that the manifest names exists with its size.
Task<void> check_files(Site site, std::shared_ptr<const Described> described) {
  if (site.objects() != nullptr) {
    Status checked = co_await check_objects(site, described);
    co_return checked;
  }
  for (const ListedFile& file : described->files) {
    const std::string path = os::join(site.at(described->checkpoint.name), file.name);
    const auto found = co_await site.files().status(path);
    if (!found && found.error().code() == Errc::not_found) {
      co_return fail(Errc::corruption, fmt::format("{} is missing", file.name));
    }
    CKPT_CO_TRY(const auto status, found);
    if (status.kind != os::EntryKind::file || status.bytes != file.bytes) {
      co_return fail(Errc::corruption, wrong_size(file, status.bytes));
    }
  }
  co_return Status();
}

Status check_identity(const Checkpoint& checkpoint, std::optional<format::RunId> run) {
  if (run && checkpoint.run != *run) {
    return fail(Errc::invalid_argument,
                fmt::format("it is of job {}, run {}", checkpoint.job, to_hex(checkpoint.run)));
  }
  const std::string problem = misplaced_reason(checkpoint.name, checkpoint.at.step);
  if (problem.empty()) return {};
  return fail(Errc::corruption, problem);
}

std::shared_ptr<const Described> describe_all(const Manifest& manifest, const std::string& name) {
  auto described = std::make_shared<Described>();
  described->checkpoint = describe(manifest, name);
  for (const format::ManifestShard& shard : manifest.shards) {
    const std::string folder = shard.folder.empty() ? "" : shard.folder + "/";
    if (!shard.embedded)
      described->files.push_back({folder + format::part_name(shard.rank), shard.part.bytes});
    for (const format::StoredFile& file : shard.files)
      described->files.push_back({folder + file.name, file.bytes});
  }
  return described;
}

// Describes one directory's manifest, from the cache if that is still valid.
Task<std::shared_ptr<const Described>> look_at(Site site, std::string name, CatalogCache* cache) {
  const std::string path = os::join(site.at(name), format::manifest_name);
  const auto began = site.clock().wall_time();
  Result<os::FileStatus> before = fail(Errc::not_found, "");
  if (cache != nullptr) {
    before = co_await site.files().status(path);
    if (before) {
      if (auto known = cache->find(name, *before)) co_return known;
    }
  }
  CKPT_CO_TRY(const auto manifest, co_await read_manifest(site, name));
  using Known = std::shared_ptr<const Described>;
  std::function<Result<Known>()> work = [manifest, name] { return describe_all(*manifest, name); };
  CKPT_CO_TRY(const Known described, co_await compute_on(site.compute(), std::move(work)));
  if (before) {
    // Another directory may have taken this place before the file was opened.
    const auto after = co_await site.files().status(path);
    if (after && *after == *before) cache->keep(name, *before, began, described);
  }
  co_return described;
}

// Returns nothing if the directory was removed or replaced while it was read. `rejected` gets what
// is known of it beside the error; it lives until the Task ends.
Task<std::optional<Checkpoint>> examine_checkpoint(Site site, std::string name,
                                                   CatalogOptions options, Rejected& rejected) {
  std::optional<Checkpoint> seen;
  Status whole;
  const auto described = co_await look_at(site, name, options.cache);
  if (described) {
    seen = (*described)->checkpoint;
    whole = check_identity(*seen, options.run);
    rejected.is_misplaced = !whole && whole.error().code() == Errc::corruption;
    if (whole) rejected.at = seen->at;
    if (whole) whole = co_await check_files(site, *described);
  } else {
    whole = fail(described.error());
  }
  if (whole) co_return seen;
  const Errc code = whole.error().code();
  // In a bucket, files come to their places before their manifest, and leave after it.
  const bool is_attempt = site.objects() != nullptr && !seen && code == Errc::not_found;
  if (is_attempt) co_return fail(std::move(whole).error());
  if (code == Errc::not_found || code == Errc::corruption) {
    CKPT_CO_TRY(const bool is_gone,
                co_await has_gone(site.files(), site.at(name), seen, site.compute()));
    if (is_gone) co_return std::optional<Checkpoint>();
  }
  co_return fail(std::move(whole).error());
}

struct Examined {
  Catalog catalog;
  bool is_outdated = false;  // Some have vanished meanwhile.
};

// A restore to an older step abandons everything rejected here. So a failing disk is read again,
// and only what it still cannot give is rejected.
Task<Examined> examine_all(Site site, std::vector<StepDirectory> names, CatalogOptions options) {
  Examined examined;
  Catalog& catalog = examined.catalog;
  for (int round = 1; !names.empty(); ++round) {
    std::vector<StepDirectory> failed;
    for (const StepDirectory& parsed : names) {
      const std::string name = step_directory_name(parsed.step, parsed.generation);
      Rejected rejected;
      auto checkpoint = co_await examine_checkpoint(site, name, options, rejected);
      if (checkpoint) {
        if (*checkpoint) catalog.checkpoints.push_back(**std::move(checkpoint));
        examined.is_outdated = examined.is_outdated || !*checkpoint;
        continue;
      }
      const Errc code = checkpoint.error().code();
      if (code == Errc::not_found && site.objects() != nullptr) continue;  // An attempt.
      if (may_pass(checkpoint.error()) && round < rounds_max) {
        failed.push_back(parsed);
        continue;
      }
      const Error& error = checkpoint.error();
      rejected.name = name;
      rejected.code = code;
      rejected.reason = rejected.is_misplaced ? error.text() : error.message();
      rejected.is_of_other_run = code == Errc::invalid_argument;
      catalog.rejected.push_back(std::move(rejected));
    }
    names = std::move(failed);
    if (names.empty()) break;
    CKPT_CO_CHECK(co_await sleep_until(site.clock(), site.clock().after(pause * round)));
  }
  co_return examined;
}

Task<std::vector<os::DirectoryEntry>> list_once(Site site, bool make_durable) {
  CKPT_CO_TRY(auto entries, co_await site.files().list(site.at(".")));
  if (make_durable) {
    CKPT_CO_CHECK(co_await site.files().sync_directory(site.at(".")));
  }
  co_return entries;
}

// A node that cannot list the directory restores from memory alone, which may be older than the
// storage.
Task<std::vector<os::DirectoryEntry>> list_again_and_again(Site site, bool make_durable) {
  for (int round = 1;; ++round) {
    auto listed = co_await list_once(site, make_durable);
    if (listed || !may_pass(listed.error()) || round == rounds_max) co_return listed;
    CKPT_CO_CHECK(co_await sleep_until(site.clock(), site.clock().after(pause * round)));
  }
}

// Keeps the later one of two generations of one step and timeline.
void drop_doubles(Catalog& catalog) {
  auto& all = catalog.checkpoints;
  std::sort(all.begin(), all.end(), [](const Checkpoint& left, const Checkpoint& right) {
    // A later generation has the longer name, or the greater of equally long ones.
    return std::tuple(left.at, left.name.size(), std::string_view(left.name)) <
           std::tuple(right.at, right.name.size(), std::string_view(right.name));
  });
  for (std::size_t index = 0; index + 1 < all.size();) {
    if (all[index].at != all[index + 1].at || all[index].run != all[index + 1].run) {
      ++index;
      continue;
    }
    catalog.rejected.push_back(Rejected{all[index].name, Errc::invalid_argument,
                                        "replaced by " + all[index + 1].name, false});
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(index));
  }
}

std::set<std::string> names_of(const std::vector<os::DirectoryEntry>& entries) {
  std::set<std::string> names;
  for (const os::DirectoryEntry& entry : entries) names.insert(entry.name);
  return names;
}

Task<Examined> read_once(Site site, CatalogOptions options) {
  Catalog catalog;
  CKPT_CO_TRY(const auto entries, co_await list_again_and_again(site, options.make_durable));
  std::vector<StepDirectory> names;
  for (const os::DirectoryEntry& entry : entries) {
    const auto parsed = parse_step_directory(entry.name);
    if (!parsed || (options.only && parsed->step != *options.only)) continue;
    if (entry.kind == os::EntryKind::symlink) {
      // A step may have been moved behind it, so nobody may start from scratch.
      catalog.rejected.push_back(Rejected{entry.name, Errc::corruption,
                                          "it is a symbolic link, which is not followed", false,
                                          true});
      continue;
    }
    if (entry.kind != os::EntryKind::directory) {
      catalog.rejected.push_back(
          Rejected{entry.name, Errc::invalid_argument, "it is no directory", false});
      continue;
    }
    names.push_back(*parsed);
  }
  if (options.cache != nullptr && !options.only) options.cache->keep_only(names_of(entries));
  std::sort(names.begin(), names.end(), [](const StepDirectory& left, const StepDirectory& right) {
    return std::pair(left.step, left.generation) < std::pair(right.step, right.generation);
  });
  auto examined = co_await examine_all(site, std::move(names), options);
  if (!examined) co_return fail(std::move(examined).error());
  catalog.checkpoints = std::move(examined->catalog.checkpoints);
  std::ranges::move(examined->catalog.rejected, std::back_inserter(catalog.rejected));
  drop_doubles(catalog);
  examined->catalog = std::move(catalog);
  co_return examined;
}

}  // namespace

Task<std::vector<std::string>> list_steps(Site site) {
  CKPT_CO_TRY(const auto entries, co_await site.files().list(site.at(".")));
  std::vector<StepDirectory> steps;
  for (const os::DirectoryEntry& entry : entries) {
    const auto parsed = parse_step_directory(entry.name);
    if (parsed && entry.kind == os::EntryKind::directory) steps.push_back(*parsed);
  }
  std::ranges::sort(steps, std::greater(), [](const StepDirectory& each) {
    return std::pair(each.step, each.generation);
  });
  std::vector<std::string> names;
  for (const StepDirectory& each : steps)
    names.push_back(step_directory_name(each.step, each.generation));
  co_return names;
}

Task<Catalog> read_catalog(Site site, CatalogOptions options) {
  for (int round = 1;; ++round) {
    CKPT_CO_TRY(auto examined, co_await read_once(site, options));
    // A newer step is published before one is removed, and the listing did not have it.
    if (!examined.is_outdated || round == rounds_max) co_return std::move(examined.catalog);
  }
}

Task<bool> has_gone(Site site, Checkpoint seen) {
  const std::string directory = site.at(seen.name);
  auto gone = co_await has_gone(site.files(), directory, std::move(seen), site.compute());
  co_return gone;
}

}  // namespace ckpt::storage
