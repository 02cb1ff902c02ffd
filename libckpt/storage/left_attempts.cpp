#include "storage/left_attempts.hpp"

#include <algorithm>
#include <optional>

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

}  // namespace

Task<std::vector<Attempt>> list_attempts(Site site) {
  std::vector<Attempt> found;
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
