#include "bucket/bucket_file_system.hpp"

#include <algorithm>
#include <map>

#include "base/checksum.hpp"
#include "bucket/bucket_file.hpp"

namespace ckpt::bucket {

namespace {

// Below these, directories and uploads have no end.
constexpr std::size_t entries_max = 1'000'000;

std::uint64_t number_for(std::string_view text) {
  return digest_of(std::as_bytes(std::span(text))).low | 1;  // Never 0.
}

Unexpected too_many(const std::string& path) {
  return fail(Errc::exhausted, "list " + path + ": there are too many objects");
}

}  // namespace

Task<std::unique_ptr<os::File>> BucketFileSystem::create(std::string path, os::Caching) {
  CKPT_CO_TRY(BucketPath place, parse_bucket_path(path));
  std::unique_ptr<os::File> file = std::make_unique<ObjectWriter>(*client_, std::move(place));
  co_return std::move(file);
}

Task<std::unique_ptr<os::File>> BucketFileSystem::open_read(std::string path, os::Caching) {
  CKPT_CO_TRY(BucketPath place, parse_bucket_path(path));
  CKPT_CO_TRY(ObjectFacts facts, co_await client_->head(place));
  std::unique_ptr<os::File> file =
      std::make_unique<ObjectReader>(*client_, std::move(place), std::move(facts));
  co_return std::move(file);
}

Task<std::vector<std::byte>> BucketFileSystem::read_small(std::string path,
                                                          std::uint64_t bytes_max) {
  CKPT_CO_TRY(os::TaggedBytes found, co_await read_tagged(path, bytes_max));
  co_return std::move(found.bytes);
}

Task<void> BucketFileSystem::write_small(std::string path, std::vector<std::byte> bytes) {
  const os::PutCondition condition(os::PutMode::if_absent);
  Status done = co_await put_small(path, std::move(bytes), condition);
  co_return done;
}

Task<void> BucketFileSystem::append_small(std::string path, std::vector<std::byte>, os::Syncing) {
  co_return fail(Errc::unsupported, "append to " + path + ": an object cannot grow");
}

Task<void> BucketFileSystem::make_directory(std::string path) {
  CKPT_CO_TRY(const BucketPath place, parse_bucket_path(path));
  (void)place;
  co_return Status();
}

Task<void> BucketFileSystem::rename(std::string from, std::string to, os::RenameMode) {
  co_return fail(Errc::unsupported, "rename " + from + " to " + to + ": a bucket has no rename");
}

Task<void> BucketFileSystem::remove_file(std::string path) {
  CKPT_CO_TRY(const BucketPath place, parse_bucket_path(path));
  Status done = co_await client_->remove(place);
  co_return done;
}

Task<void> BucketFileSystem::remove_directory(std::string path) {
  CKPT_CO_TRY(const BucketPath place, parse_bucket_path(path));
  (void)place;
  co_return Status();
}

Task<void> BucketFileSystem::sync_directory(std::string path) {
  CKPT_CO_TRY(const BucketPath place, parse_bucket_path(path));
  (void)place;
  co_return Status();
}

Task<std::vector<os::DirectoryEntry>> BucketFileSystem::list(std::string path) {
  CKPT_CO_TRY(const BucketPath place, parse_bucket_path(path));
  ListOrder order;
  order.below = place;
  const std::string below = prefix_of(place);
  std::map<std::string, os::EntryKind> entries;
  do {
    CKPT_CO_TRY(const ListedPage page, co_await client_->list(order));
    for (const ListedObject& object : page.objects) {
      std::string name = object.key.substr(std::min(below.size(), object.key.size()));
      if (!name.empty()) entries.emplace(std::move(name), os::EntryKind::file);
    }
    for (const std::string& prefix : page.prefixes) {
      if (prefix.size() <= below.size() + 1) continue;
      std::string name = prefix.substr(below.size());
      name.pop_back();
      // "a" and "a/b" may both be there: a key with others below it counts as a directory.
      entries.insert_or_assign(std::move(name), os::EntryKind::directory);
    }
    if (entries.size() > entries_max) co_return too_many(path);
    order.token = page.next;
  } while (!order.token.empty());
  std::vector<os::DirectoryEntry> sorted;
  for (const auto& [name, kind] : entries) sorted.push_back(os::DirectoryEntry{name, kind});
  co_return sorted;
}

Task<os::FileStatus> BucketFileSystem::status(std::string path) {
  CKPT_CO_TRY(const BucketPath place, parse_bucket_path(path));
  os::FileStatus status;
  status.device = number_for(client_->settings().describe() + " " + place.bucket);
  Error missing(Errc::not_found, "look at " + path + ": there is no such object");
  if (!place.key.empty()) {
    auto facts = co_await client_->head(place);
    if (facts) {
      status.kind = os::EntryKind::file;
      status.bytes = facts->bytes;
      status.inode = number_for(facts->tag);
      status.modified_ns = facts->modified_ns;
      status.changed_ns = facts->modified_ns;
      co_return status;
    }
    if (facts.error().code() != Errc::not_found) co_return fail(std::move(facts).error());
  }
  ListOrder order;
  order.below = place;
  order.keys_max = 1;
  CKPT_CO_TRY(const ListedPage page, co_await client_->list(order));
  const bool is_there = place.key.empty() || !page.objects.empty() || !page.prefixes.empty();
  if (!is_there) co_return fail(std::move(missing));
  status.kind = os::EntryKind::directory;
  co_return status;
}

Task<os::Space> BucketFileSystem::space(std::string) {
  os::Space space;  // A bucket has no end, and says nothing about quotas.
  space.bytes_free = std::uint64_t{1} << 60;
  space.bytes_total = space.bytes_free;
  co_return space;
}

Task<os::TaggedBytes> BucketFileSystem::read_tagged(std::string path, std::uint64_t bytes_max) {
  CKPT_CO_TRY(BucketPath place, parse_bucket_path(path));
  auto found = co_await client_->get(std::move(place), bytes_max);
  co_return found;
}

Task<void> BucketFileSystem::put_small(std::string path, std::vector<std::byte> bytes,
                                       os::PutCondition condition) {
  CKPT_CO_TRY(BucketPath place, parse_bucket_path(path));
  Pieces pieces;
  pieces.push_back(std::span<const std::byte>(bytes));
  Status done = co_await client_->put(std::move(place), std::move(pieces), std::move(condition));
  co_return done;
}

Task<std::vector<os::ObjectEntry>> BucketFileSystem::list_below(std::string path) {
  CKPT_CO_TRY(const BucketPath place, parse_bucket_path(path));
  ListOrder order;
  order.below = place;
  order.is_deep = true;
  const std::string below = prefix_of(place);
  std::vector<os::ObjectEntry> entries;
  do {
    CKPT_CO_TRY(const ListedPage page, co_await client_->list(order));
    for (const ListedObject& object : page.objects) {
      os::ObjectEntry entry;
      entry.name = object.key.substr(std::min(below.size(), object.key.size()));
      entry.bytes = object.bytes;
      entry.age = client_->age_of(object.modified);
      if (!entry.name.empty()) entries.push_back(std::move(entry));
    }
    if (entries.size() > entries_max) co_return too_many(path);
    order.token = page.next;
  } while (!order.token.empty());
  std::sort(entries.begin(), entries.end(),
            [](const os::ObjectEntry& left, const os::ObjectEntry& right) {
              return left.name < right.name;
            });
  co_return entries;
}

Task<std::vector<os::Upload>> BucketFileSystem::list_uploads_below(std::string path) {
  CKPT_CO_TRY(const BucketPath place, parse_bucket_path(path));
  const std::string below = prefix_of(place);
  std::vector<os::Upload> found;
  UploadsPage page;
  do {
    CKPT_CO_TRY(page, co_await client_->list_uploads(place, page));
    for (const StartedUpload& started : page.uploads) {
      if (!started.key.starts_with(below)) continue;
      os::Upload upload;
      upload.name = started.key.substr(below.size());
      upload.id = started.id;
      upload.age = client_->age_of(started.begun);
      found.push_back(std::move(upload));
    }
    if (found.size() > entries_max) co_return too_many(path);
  } while (!page.next_key.empty());
  co_return found;
}

Task<void> BucketFileSystem::abort_upload(std::string path, std::string id) {
  CKPT_CO_TRY(BucketPath place, parse_bucket_path(path));
  Status done = co_await client_->abort_upload(std::move(place), std::move(id));
  co_return done;
}

std::string BucketFileSystem::silence(std::string_view path) const {
  const auto place = parse_bucket_path(path);
  return place ? client_->silence(*place) : std::string();
}

}  // namespace ckpt::bucket
