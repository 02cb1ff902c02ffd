#include "storage/bucket_removal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "storage/attempt.hpp"
#include "storage/catalog.hpp"
#include "storage/event_log.hpp"
#include "storage/parallel.hpp"

namespace ckpt::storage {

namespace {

// Each takes a round trip.
constexpr std::size_t removals_in_flight = 16;

Task<void> remove_all(Site site, std::vector<std::string> paths) {
  std::function<Task<void>(std::size_t)> remove_one = [&](std::size_t index) {
    return site.files().remove_file(paths[index]);
  };
  Status done = co_await for_each_parallel(paths.size(), removals_in_flight, std::move(remove_one));
  co_return done;
}

// "rank-00000.part", "turn-1/rank-00000.part": files of an attempt.
bool is_file_of_attempt(std::string_view name) {
  const auto slash = name.find('/');
  if (slash == std::string_view::npos) return format::is_name_of_rank(name);
  return name.starts_with("turn-") && format::is_name_of_rank(name.substr(slash + 1));
}

// Reads "step-000000009/t1.00000000000000aa/rank-00000.part". None: it is no file of an attempt.
std::optional<WorkDirectory> attempt_of(std::string_view name) {
  const auto step_end = name.find('/');
  if (step_end == std::string_view::npos) return std::nullopt;
  const auto step = parse_step_directory(name.substr(0, step_end));
  const std::string_view rest = name.substr(step_end + 1);
  if (!step) return std::nullopt;
  return parse_attempt_folder(step->step, rest.substr(0, rest.find('/')));
}

// An attempt that was published has uploads if a node died in one, and another node wrote its file
// elsewhere, or if the answer to the beginning of one was lost. Copies and repairs upload there,
// too, so that only an old one is nobody's.
Task<void> abort_beside_checkpoints(Site site) {
  CKPT_CO_TRY(const auto uploads, co_await site.objects()->list_uploads_below(site.at(".")));
  for (const os::Upload& upload : uploads) {
    const auto work = attempt_of(upload.name);
    if (!work || !upload.age || *upload.age < upload_left_after) continue;
    const auto is_published = co_await is_published_attempt(site, *work);
    if (!is_published || !*is_published) continue;
    const std::string path = site.at(upload.name);
    CKPT_CO_CHECK(co_await site.objects()->abort_upload(path, upload.id));
    log_info("storage: an upload of {}, left by a save that is over, was aborted",
             os::display(path));
  }
  co_return Status();
}

Task<void> log_discard(Site site, std::string work_name, WorkDirectory work, std::string reason) {
  Event event;
  event.operation = "discard";
  event.path = std::move(work_name);
  event.at = work.at;
  event.reason = std::move(reason);
  Status logged = co_await record_event(site, std::move(event));
  co_return logged;
}

}  // namespace

Task<void> abort_uploads(Site site, std::string directory) {
  CKPT_CO_TRY(const auto uploads, co_await site.objects()->list_uploads_below(directory));
  for (const os::Upload& upload : uploads) {
    const std::string path = os::join(directory, upload.name);
    CKPT_CO_CHECK(co_await site.objects()->abort_upload(path, upload.id));
  }
  co_return Status();
}

Task<void> remove_from_bucket(Site site, std::string name,
                              std::shared_ptr<const format::Manifest> manifest) {
  CKPT_ASSERT(site.objects() != nullptr);
  CKPT_ASSERT(manifest != nullptr);
  const std::string directory = site.at(name);
  CKPT_CO_CHECK(co_await site.files().remove_file(os::join(directory, format::manifest_name)));
  CKPT_POINT("prune.mark.after");
  std::vector<std::string> paths;
  for (const format::ManifestShard& shard : manifest->shards) {
    const std::string folder = shard_directory(directory, shard);
    for (const format::StoredFile& file : shard.files) paths.push_back(os::join(folder, file.name));
    if (!shard.embedded) paths.push_back(os::join(folder, format::part_name(shard.rank)));
  }
  Status removed = co_await remove_all(site, std::move(paths));
  co_return removed;
}

Task<bool> discard_attempt(Site site, std::string work_name, std::string reason) {
  const auto work = parse_work_directory(work_name);
  if (!work) {
    co_return fail(Errc::invalid_argument,
                   "discard " + work_name + ": it is no work directory's name");
  }
  const std::string directory = attempt_path(site, work_name);
  // First without a mark: most of those that are looked at belong to a checkpoint.
  CKPT_CO_TRY(const bool is_published, co_await is_published_attempt(site, *work));
  if (is_published) co_return false;
  CKPT_CO_TRY(const auto there, co_await site.objects()->list_below(directory));
  if (there.empty()) {
    CKPT_CO_CHECK(co_await abort_uploads(site, directory));
    co_return true;
  }
  const std::string mark = os::join(directory, discarded_name);
  const os::PutCondition replace(os::PutMode::replace);
  CKPT_CO_CHECK(co_await site.objects()->put_small(mark, std::vector<std::byte>(), replace));
  CKPT_CO_TRY(const bool was_published, co_await is_published_attempt(site, *work));
  if (was_published) {
    CKPT_CO_CHECK(co_await site.files().remove_file(mark));
    co_return false;
  }
  CKPT_CO_CHECK(co_await log_discard(site, work_name, *work, std::move(reason)));
  CKPT_CO_CHECK(co_await abort_uploads(site, directory));
  CKPT_CO_TRY(const auto entries, co_await site.objects()->list_below(directory));
  std::vector<std::string> paths;
  bool has_foreign = false;
  for (const os::ObjectEntry& entry : entries) {
    if (is_file_of_attempt(entry.name)) {
      paths.push_back(os::join(directory, entry.name));
    } else {
      has_foreign = has_foreign || entry.name != discarded_name;
    }
  }
  CKPT_CO_CHECK(co_await remove_all(site, std::move(paths)));
  CKPT_CO_CHECK(co_await site.files().remove_file(mark));
  if (has_foreign)
    log_warning("storage: {} holds objects that are not ours; they are left alone",
                os::display(directory));
  co_return true;
}

Task<bool> is_published_attempt(Site site, WorkDirectory work) {
  const std::string name = step_directory_name(work.at.step);
  const auto manifest = co_await read_manifest(site, name);
  if (!manifest && manifest.error().code() == Errc::not_found) co_return false;
  if (!manifest) co_return fail(manifest.error());
  const std::string folder = attempt_folder(work);
  co_return std::ranges::any_of((*manifest)->shards, [&](const format::ManifestShard& shard) {
    return shard.folder == folder || shard.folder.starts_with(folder + "/");
  });
}

Task<std::vector<std::string>> find_attempts(Site site) {
  std::set<std::string> found;
  const auto add = [&](const WorkDirectory& work) {
    found.insert(work_directory_name(work.at, work.attempt));
  };
  CKPT_CO_TRY(const auto entries, co_await site.files().list(site.at(".")));
  for (const os::DirectoryEntry& entry : entries) {
    const auto parsed = parse_step_directory(entry.name);
    if (!parsed || entry.kind != os::EntryKind::directory) continue;
    CKPT_CO_TRY(const auto folders, co_await site.files().list(site.at(entry.name)));
    for (const os::DirectoryEntry& folder : folders)
      if (const auto work = parse_attempt_folder(parsed->step, folder.name)) add(*work);
  }
  // An attempt whose first upload is not complete has no object yet.
  CKPT_CO_TRY(const auto uploads, co_await site.objects()->list_uploads_below(site.at(".")));
  for (const os::Upload& upload : uploads)
    if (const auto work = attempt_of(upload.name)) add(*work);
  co_return std::vector<std::string>(found.begin(), found.end());
}

Task<std::vector<std::string>> discard_stale_in_bucket(
    Site site, std::function<bool(std::string work_name)> is_stale) {
  CKPT_CO_TRY(const auto found, co_await find_attempts(site));
  std::vector<std::string> removed;
  for (const std::string& work_name : found) {
    if (!is_stale(work_name)) continue;
    CKPT_CO_TRY(const bool is_gone,
                co_await discard_attempt(site, work_name, "left by an earlier attempt"));
    if (is_gone) removed.push_back(work_name);
  }
  CKPT_CO_CHECK(co_await abort_beside_checkpoints(site));
  co_return removed;
}

}  // namespace ckpt::storage
