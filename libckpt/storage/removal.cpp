// How a checkpoint is removed:
//   1. Its manifest is read: it must be whole and of this run, and that of the checkpoint that was
//      listed. None of its files may be one that cannot be read.
//  2. The deletion is logged, and the log is synced.
//   3. The directory is renamed to a hidden name, and the parent is synced: it is no checkpoint
//   now. If somebody has published another one under its name since step 1, that one goes back.
//   4. The files that the manifest names are removed.
//   5. The manifest is removed, then the directory.
// If a full disk has no room for the rename, or foreign files in the directory must stay where
// their owner put them, the manifest is removed first and synced instead of step 3.
#include "storage/removal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "format/layout.hpp"
#include "storage/attempt.hpp"
#include "storage/bucket_removal.hpp"
#include "storage/catalog.hpp"
#include "storage/event_log.hpp"
#include "storage/readable.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

namespace {

// Deterministic, and different for each manifest. So a name that is taken belongs to an interrupted
// deletion of the same checkpoint.
std::uint64_t tombstone_attempt(const format::Manifest& manifest) {
  const Digest digest = manifest.shards.front().record_digest;
  return digest.low ^ manifest.created_unix_seconds;
}

Task<void> remove_if_there(Site site, std::string path) {
  Status done = co_await site.files().remove_file(path);
  if (!done && done.error().code() == Errc::not_found) co_return Status();
  co_return done;
}

// The files of a directory that are ours to remove. `manifest` null: an attempt without one.
struct Contents {
  std::vector<std::string> ours;     // Below the directory.
  std::vector<std::string> folders;  // Those that have some of them, the deepest first.
  bool has_manifest = false;
  bool has_foreign = false;
};

// In a bucket, the manifest names a folder for each shard. A run that was copied from there to a
// disk has them still.
bool is_folder_of(const format::Manifest& manifest, const std::string& path) {
  if (!parse_attempt_folder(manifest.at.step, path.substr(0, path.find('/')))) return false;
  return std::ranges::any_of(manifest.shards, [&](const format::ManifestShard& shard) {
    return shard.folder == path || shard.folder.starts_with(path + "/");
  });
}

// Adds the content of `folder` below the directory; empty: of the directory itself. `contents`
// lives until the Task ends.
Task<void> add_contents(Site site, std::string directory, std::string folder,
                        std::shared_ptr<const format::Manifest> manifest, Contents& contents) {
  const std::string place = folder.empty() ? directory : os::join(directory, folder);
  CKPT_CO_TRY(const auto entries, co_await site.files().list(place));
  const std::set<std::string> named =
      manifest ? format::file_names(*manifest) : std::set<std::string>();
  for (const os::DirectoryEntry& entry : entries) {
    const bool is_file = entry.kind == os::EntryKind::file;
    const std::string stem(without_turn(entry.name));
    const bool is_named = manifest ? named.contains(stem) : format::is_name_of_rank(stem);
    const std::string path = folder.empty() ? entry.name : os::join(folder, entry.name);
    if (is_file && path == format::manifest_name) {
      contents.has_manifest = true;
    } else if (is_file && is_named) {
      contents.ours.push_back(path);
    } else if (entry.kind == os::EntryKind::directory && manifest &&
               is_folder_of(*manifest, path)) {
      CKPT_CO_CHECK(co_await add_contents(site, directory, path, manifest, contents));
    } else {
      contents.has_foreign = true;
    }
  }
  if (!folder.empty()) contents.folders.push_back(folder);
  co_return Status();
}

Task<Contents> contents_of(Site site, std::string name,
                           std::shared_ptr<const format::Manifest> manifest) {
  Contents contents;
  CKPT_CO_CHECK(co_await add_contents(site, site.at(name), "", manifest, contents));
  co_return contents;
}

// Steps 4 and 5. If there are foreign files, the directory stays, and its manifest too if it still
// has one: that says next time which files were ours.
Task<void> empty_directory(Site site, std::string name,
                           std::shared_ptr<const format::Manifest> manifest) {
  // Without a manifest only the files of an attempt are known by their names.
  CKPT_ASSERT(manifest != nullptr || parse_work_directory(name).has_value());
  const std::string directory = site.at(name);
  CKPT_CO_TRY(const Contents contents, co_await contents_of(site, name, manifest));
  for (std::size_t index = 0; index < contents.ours.size(); ++index) {
    CKPT_CO_CHECK(co_await remove_if_there(site, os::join(directory, contents.ours[index])));
    if (index == 0) CKPT_POINT("prune.member_unlink.first");
  }
  CKPT_POINT("prune.member_unlink.last");
  if (contents.has_foreign) {
    log_warning("storage: {} holds files that are not ours; they and it are left alone",
                os::display(directory));
    co_return Status();
  }
  for (const std::string& folder : contents.folders)
    CKPT_CO_CHECK(co_await site.files().remove_directory(os::join(directory, folder)));
  if (contents.has_manifest) {
    CKPT_CO_CHECK(co_await remove_if_there(site, os::join(directory, format::manifest_name)));
  }
  CKPT_POINT("prune.rmdir");
  Status removed = co_await site.files().remove_directory(directory);
  co_return removed;
}

// Replaces steps 3 to 5.
Task<void> remove_in_place(Site site, std::string name,
                           std::shared_ptr<const format::Manifest> manifest) {
  CKPT_ASSERT(manifest != nullptr);  // Else its other files would stay for good.
  CKPT_ASSERT(parse_step_directory(name).has_value());
  CKPT_CO_CHECK(co_await remove_if_there(site, os::join(site.at(name), format::manifest_name)));
  CKPT_CO_CHECK(co_await site.files().sync_directory(site.at(name)));
  Status emptied = co_await empty_directory(site, name, manifest);
  co_return emptied;
}

bool is_same(const Checkpoint& one, const Checkpoint& other) {
  return std::tie(one.at, one.run, one.digests, one.created_unix_seconds) ==
         std::tie(other.at, other.run, other.digests, other.created_unix_seconds);
}

Error has_changed(const std::string& name) {
  return Error(Errc::not_found, "delete " + name + ": another checkpoint has its name by now");
}

// The end of step 3.
Task<void> check_hidden(Site site, std::string name, std::string hidden,
                        std::shared_ptr<const format::Manifest> removed) {
  CKPT_ASSERT(parse_step_directory(name).has_value());
  CKPT_ASSERT(parse_work_directory(hidden).has_value());
  const auto found = co_await read_manifest(site, hidden);
  // It cannot be read any more: whatever it is, files that are not named stay.
  if (!found || is_same(describe(**found, name), describe(*removed, name))) co_return Status();
  constexpr auto no_replace = os::RenameMode::no_replace;
  CKPT_CO_CHECK(co_await site.files().rename(site.at(hidden), site.at(name), no_replace));
  CKPT_CO_CHECK(co_await site.files().sync_directory(site.at(".")));
  co_return fail(has_changed(name));
}

}  // namespace

Task<void> remove_checkpoint(Site site, Checkpoint listed, format::RunId run, std::string reason) {
  const std::string name = listed.name;
  if (!parse_step_directory(name)) {
    co_return fail(Errc::invalid_argument, "delete " + name + ": it is no checkpoint's name");
  }
  // Step 1.
  CKPT_CO_TRY(const auto manifest, co_await read_manifest(site, name));
  if (manifest->run != run) {
    co_return fail(Errc::invalid_argument, "delete " + name + ": it is of job " + manifest->job);
  }
  if (!is_same(listed, describe(*manifest, name))) co_return fail(has_changed(name));
  Status readable = co_await check_readable(site, name, manifest);
  if (!readable) co_return fail(std::move(readable).error().context("delete " + name));

  CKPT_ASSERT(manifest->run == run);
  CKPT_ASSERT(!manifest->shards.empty());  // The hidden name is made from the first.

  // Step 2.
  Event event;
  event.operation = "delete";
  event.path = name;
  event.at = manifest->at;
  event.bytes = describe(*manifest, name).bytes;
  event.reason = reason;
  CKPT_CO_CHECK(co_await record_event(site, std::move(event)));
  CKPT_POINT("prune.log");

  if (site.objects() != nullptr) {
    Status done = co_await remove_from_bucket(site, name, manifest);
    co_return done;
  }
  CKPT_CO_TRY(const Contents contents, co_await contents_of(site, name, manifest));
  if (contents.has_foreign) {
    Status done = co_await remove_in_place(site, name, manifest);
    co_return done;
  }

  // Step 3.
  const std::string hidden = work_directory_name(manifest->at, tombstone_attempt(*manifest));
  CKPT_ASSERT(parse_work_directory(hidden).has_value());  // Else nobody would ever remove the rest.
  CKPT_POINT("prune.mark.before");
  constexpr auto no_replace = os::RenameMode::no_replace;
  Status renamed = co_await site.files().rename(site.at(name), site.at(hidden), no_replace);
  if (!renamed && renamed.error().cause() == std::errc::file_exists) {
    // A deletion of the same checkpoint was interrupted before it was published again.
    CKPT_CO_CHECK(co_await discard_work_directory(site, hidden, "the rest of a deletion"));
    renamed = co_await site.files().rename(site.at(name), site.at(hidden), no_replace);
  }
  if (!renamed && renamed.error().code() == Errc::exhausted) {
    Status done = co_await remove_in_place(site, name, manifest);
    co_return done;
  }
  if (!renamed) co_return renamed;
  CKPT_CO_CHECK(co_await check_hidden(site, name, hidden, manifest));
  CKPT_CO_CHECK(co_await site.files().sync_directory(site.at(".")));
  CKPT_POINT("prune.mark.after");

  // Steps 4 and 5.
  Status emptied = co_await empty_directory(site, hidden, manifest);
  co_return emptied;
}

Task<void> discard_work_directory(Site site, std::string name, std::string reason) {
  const auto parsed = parse_work_directory(name);
  if (!parsed) {
    co_return fail(Errc::invalid_argument, "discard " + name + ": it is no work directory's name");
  }
  CKPT_ASSERT(!parse_step_directory(name));  // A checkpoint goes by remove_checkpoint alone.
  if (site.objects() != nullptr) {
    auto done = co_await discard_attempt(site, name, std::move(reason));
    if (!done) co_return fail(std::move(done).error());
    co_return Status();
  }
  const auto status = co_await site.files().status(site.at(name));
  if (!status && status.error().code() == Errc::not_found) co_return Status();
  if (!status) co_return fail(status.error());
  if (status->kind != os::EntryKind::directory) {
    co_return fail(Errc::invalid_argument, "discard " + name + ": it is no directory");
  }
  CKPT_CO_CHECK(co_await site.files().sync_directory(site.at(".")));
  Event event;
  event.operation = "discard";
  event.path = name;
  event.at = parsed->at;
  event.reason = reason;
  CKPT_CO_CHECK(co_await record_event(site, std::move(event)));
  auto manifest = co_await read_manifest(site, name);
  // A missing or torn manifest: the attempt ended before it was synced.
  auto trusted = manifest ? std::move(manifest).value() : nullptr;
  Status emptied = co_await empty_directory(site, name, trusted);
  co_return emptied;
}

namespace {

// Removes temporary files in `directory`, made for one of `stems` and never renamed.
Task<void> remove_files_aside(Site site, std::string directory, std::vector<std::string> stems,
                              std::vector<std::string>& removed) {
  auto entries = co_await site.files().list(site.at(directory));
  if (!entries && entries.error().code() == Errc::not_found) co_return Status();
  if (!entries) co_return fail(entries.error());
  for (const os::DirectoryEntry& entry : *entries) {
    const bool is_ours = entry.kind == os::EntryKind::file &&
                         std::any_of(stems.begin(), stems.end(), [&](const std::string& stem) {
                           return is_aside_name(entry.name, stem);
                         });
    if (!is_ours) continue;
    CKPT_CO_CHECK(co_await remove_if_there(site, os::join(site.at(directory), entry.name)));
    removed.push_back(entry.name);
  }
  co_return Status();
}

bool is_stale(const StaleAttempts& stale, const std::string& name) {
  const auto is_in = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const auto work = parse_work_directory(name);
  const bool is_over = work && (work->at.timeline < stale.timelines_below || is_in(stale.names));
  return is_over && !(stale.is_kept && stale.is_kept(name));
}

// A process that had it open by its name, to write or publish, cannot mistake the remains for the
// whole. Returns false if it stays: it has foreign files, or somebody else took it.
Task<bool> take_away(Site site, std::string name) {
  CKPT_ASSERT(!parse_step_directory(name));
  auto manifest = co_await read_manifest(site, name);
  const std::shared_ptr<const format::Manifest> trusted =
      manifest ? std::move(manifest).value() : nullptr;
  auto contents = co_await contents_of(site, name, trusted);
  if (!contents && contents.error().code() == Errc::not_found) co_return false;
  if (!contents) co_return fail(std::move(contents).error());
  if (contents->has_foreign) co_return false;
  const WorkDirectory work = parse_work_directory(name).value();
  std::string hidden = work_directory_name(work.at, ~work.attempt);
  CKPT_ASSERT(hidden != name);  // It must lead nowhere for a process that has the old name.
  CKPT_ASSERT(parse_work_directory(hidden).has_value());
  constexpr auto no_replace = os::RenameMode::no_replace;
  Status renamed = co_await site.files().rename(site.at(name), site.at(hidden), no_replace);
  if (!renamed && renamed.error().code() == Errc::not_found) co_return false;
  // A full disk may have no room for the name; an existing one is left from an earlier try.
  if (!renamed) hidden = name;
  CKPT_CO_CHECK(co_await discard_work_directory(site, hidden, "left by an earlier attempt"));
  co_return true;
}

}  // namespace

Task<std::vector<std::string>> discard_stale(Site site, StaleAttempts stale) {
  if (site.objects() != nullptr) {
    // Nothing is written aside there.
    if (stale.timelines_below == 0 && stale.names.empty()) co_return std::vector<std::string>();
    std::function<bool(std::string)> is_over = [stale](const std::string& name) {
      return is_stale(stale, name);
    };
    auto done = co_await discard_stale_in_bucket(site, std::move(is_over));
    co_return done;
  }
  std::vector<std::string> removed;
  CKPT_CO_TRY(const auto entries, co_await site.files().list(site.at(".")));
  for (const os::DirectoryEntry& entry : entries) {
    if (entry.kind != os::EntryKind::directory || !is_stale(stale, entry.name)) continue;
    CKPT_CO_TRY(const bool is_gone, co_await take_away(site, entry.name));
    if (is_gone) removed.push_back(entry.name);
  }
  if (!stale.with_files_aside) co_return removed;
  const std::vector<std::string> here{"." + std::string(latest_name)};
  const std::vector<std::string> inside{"run.json", "timelines.json", "retention.json"};
  CKPT_CO_CHECK(co_await remove_files_aside(site, ".", here, removed));
  const std::string private_directory(private_directory_name);
  CKPT_CO_CHECK(co_await remove_files_aside(site, private_directory, inside, removed));
  co_return removed;
}

}  // namespace ckpt::storage
