#include "storage/left_attempts.hpp"

#include <algorithm>
#include <optional>

#include "base/assert.hpp"
#include "storage/attempt.hpp"
#include "storage/bucket_removal.hpp"

namespace ckpt::storage {

namespace {

struct Content {
  std::uint64_t bytes = 0;
  std::int64_t changed_ns = 0;  // The newest change of the directory or of a file in it.
};

// None: it is gone, or is no directory.
Task<std::optional<Content>> measure(Site site, std::string name) {
  auto there = co_await site.files().status(site.at(name));
  if (!there && there.error().code() == Errc::not_found) co_return std::nullopt;
  if (!there) co_return fail(std::move(there).error());
  if (there->kind != os::EntryKind::directory) co_return std::nullopt;
  Content content;
  content.changed_ns = std::max(there->modified_ns, there->changed_ns);
  auto entries = co_await site.files().list(site.at(name));
  if (!entries && entries.error().code() == Errc::not_found) co_return std::nullopt;
  if (!entries) co_return fail(std::move(entries).error());
  for (const os::DirectoryEntry& entry : *entries) {
    const auto status = co_await site.files().status(os::join(site.at(name), entry.name));
    if (!status) continue;  // It was removed meanwhile, or renamed.
    if (status->kind == os::EntryKind::file) content.bytes += status->bytes;
    content.changed_ns = std::max({content.changed_ns, status->modified_ns, status->changed_ns});
  }
  co_return content;
}

bool is_old(std::optional<Duration> age, Duration left_after) {
  return age && *age >= left_after;
}

// None: it is a checkpoint, or gone.
Task<std::optional<LeftAttempt>> measure_in_bucket(Site site, std::string name) {
  const auto parsed = parse_work_directory(name);
  CKPT_ASSERT(parsed.has_value());
  const WorkDirectory work = *parsed;
  CKPT_CO_TRY(const bool is_published, co_await is_published_attempt(site, work));
  if (is_published) co_return std::optional<LeftAttempt>();
  const std::string directory = attempt_path(site, name);
  CKPT_CO_TRY(const auto objects, co_await site.objects()->list_below(directory));
  CKPT_CO_TRY(const auto uploads, co_await site.objects()->list_uploads_below(directory));
  if (objects.empty() && uploads.empty()) co_return std::optional<LeftAttempt>();
  CKPT_ASSERT(!objects.empty() || !uploads.empty());  // Else nothing would make it a young one.
  LeftAttempt attempt;
  attempt.name = name;
  attempt.at = work.at;
  attempt.is_left = true;
  for (const os::ObjectEntry& object : objects) {
    attempt.bytes += object.bytes;
    attempt.is_left = attempt.is_left && is_old(object.age, attempt_left_after);
  }
  for (const os::Upload& upload : uploads)
    attempt.is_left = attempt.is_left && is_old(upload.age, upload_left_after);
  co_return std::optional<LeftAttempt>(std::move(attempt));
}

Task<std::vector<LeftAttempt>> list_in_bucket(Site site) {
  std::vector<LeftAttempt> found;
  CKPT_CO_TRY(const auto names, co_await find_attempts(site));
  for (const std::string& name : names) {
    CKPT_CO_TRY(auto attempt, co_await measure_in_bucket(site, name));
    if (attempt) found.push_back(std::move(*attempt));
  }
  co_return found;
}

}  // namespace

Task<std::vector<LeftAttempt>> list_attempts(Site site) {
  if (site.objects() != nullptr) {
    auto listed = co_await list_in_bucket(site);
    co_return listed;
  }
  std::vector<LeftAttempt> found;
  CKPT_CO_TRY(const auto entries, co_await site.files().list(site.at(".")));
  const std::chrono::nanoseconds now = site.clock().wall_time().time_since_epoch();
  for (const os::DirectoryEntry& entry : entries) {
    const auto work = parse_work_directory(entry.name);
    if (!work) continue;
    CKPT_CO_TRY(const auto content, co_await measure(site, entry.name));
    if (!content) continue;
    const std::chrono::nanoseconds changed(content->changed_ns);
    const bool is_left = now - changed >= attempt_left_after;
    found.push_back({entry.name, work->at, content->bytes, is_left});
  }
  co_return found;
}

}  // namespace ckpt::storage
