#include "bucket/any_file_system.hpp"

#include <array>
#include <optional>

#include "base/log.hpp"
#include "bucket/curl_transport.hpp"

namespace ckpt::bucket {

namespace {

Result<std::unique_ptr<BucketFileSystem>> open_buckets(Scheme scheme, Clock& clock,
                                                       os::DiskPriority priority,
                                                       const BucketUse& use) {
  CKPT_TRY(Settings settings, Settings::read(use.environment, scheme));
  CKPT_TRY(auto transport, make_curl_transport(settings.ca_file, settings.proxies));
  log(LogLevel::debug, "s3: buckets of {} are those of {}", dialect_of(scheme).scheme,
      settings.describe());
  auto client = std::make_unique<Client>(clock, std::move(settings), use.environment,
                                         std::move(transport), priority, use.patience);
  return std::make_unique<BucketFileSystem>(std::move(client));
}

class AnyFileSystem final : public os::FileSystem, public os::Objects {
 public:
  AnyFileSystem(std::unique_ptr<os::FileSystem> disk, OpenBuckets open)
      : disk_(std::move(disk)), open_(std::move(open)) {}

  Task<std::unique_ptr<os::File>> create(std::string path, os::Caching caching) override {
    CKPT_CO_TRY(os::FileSystem* const files, files_of(path));
    auto file = co_await files->create(std::move(path), caching);
    co_return file;
  }
  Task<std::unique_ptr<os::File>> open_read(std::string path, os::Caching caching) override {
    CKPT_CO_TRY(os::FileSystem* const files, files_of(path));
    auto file = co_await files->open_read(std::move(path), caching);
    co_return file;
  }
  Task<std::vector<std::byte>> read_small(std::string path, std::uint64_t bytes_max) override {
    CKPT_CO_TRY(os::FileSystem* const files, files_of(path));
    auto bytes = co_await files->read_small(std::move(path), bytes_max);
    co_return bytes;
  }
  Task<void> write_small(std::string path, std::vector<std::byte> bytes) override {
    CKPT_CO_TRY(os::FileSystem* const files, files_of(path));
    Status done = co_await files->write_small(std::move(path), std::move(bytes));
    co_return done;
  }
  Task<void> append_small(std::string path, std::vector<std::byte> bytes,
                          os::Syncing syncing) override {
    CKPT_CO_TRY(os::FileSystem* const files, files_of(path));
    Status done = co_await files->append_small(std::move(path), std::move(bytes), syncing);
    co_return done;
  }
  Task<void> make_directory(std::string path) override {
    CKPT_CO_TRY(os::FileSystem* const files, files_of(path));
    Status done = co_await files->make_directory(std::move(path));
    co_return done;
  }
  Task<void> rename(std::string from, std::string to, os::RenameMode mode) override {
    CKPT_CO_TRY(os::FileSystem* const files, files_of(from));
    Status done = co_await files->rename(std::move(from), std::move(to), mode);
    co_return done;
  }
  Task<void> remove_file(std::string path) override {
    CKPT_CO_TRY(os::FileSystem* const files, files_of(path));
    Status done = co_await files->remove_file(std::move(path));
    co_return done;
  }
  Task<void> remove_directory(std::string path) override {
    CKPT_CO_TRY(os::FileSystem* const files, files_of(path));
    Status done = co_await files->remove_directory(std::move(path));
    co_return done;
  }
  Task<void> sync_directory(std::string path) override {
    CKPT_CO_TRY(os::FileSystem* const files, files_of(path));
    Status done = co_await files->sync_directory(std::move(path));
    co_return done;
  }
  Task<std::vector<os::DirectoryEntry>> list(std::string path) override {
    CKPT_CO_TRY(os::FileSystem* const files, files_of(path));
    auto entries = co_await files->list(std::move(path));
    co_return entries;
  }
  Task<os::FileStatus> status(std::string path) override {
    CKPT_CO_TRY(os::FileSystem* const files, files_of(path));
    auto status = co_await files->status(std::move(path));
    co_return status;
  }
  Task<os::Space> space(std::string path) override {
    CKPT_CO_TRY(os::FileSystem* const files, files_of(path));
    auto space = co_await files->space(std::move(path));
    co_return space;
  }

  // It answers for buckets that cannot be reached, too: those calls fail.
  os::Objects* objects(std::string_view path) override {
    return is_bucket_path(path) ? this : nullptr;
  }
  Task<os::TaggedBytes> read_tagged(std::string path, std::uint64_t bytes_max) override {
    CKPT_CO_TRY(BucketFileSystem* const files, buckets_of(path));
    auto found = co_await files->read_tagged(std::move(path), bytes_max);
    co_return found;
  }
  Task<void> put_small(std::string path, std::vector<std::byte> bytes,
                       os::PutCondition condition) override {
    CKPT_CO_TRY(BucketFileSystem* const files, buckets_of(path));
    Status done = co_await files->put_small(std::move(path), std::move(bytes), condition);
    co_return done;
  }
  Task<std::vector<os::ObjectEntry>> list_below(std::string path) override {
    CKPT_CO_TRY(BucketFileSystem* const files, buckets_of(path));
    auto entries = co_await files->list_below(std::move(path));
    co_return entries;
  }
  Task<std::vector<os::Upload>> list_uploads_below(std::string path) override {
    CKPT_CO_TRY(BucketFileSystem* const files, buckets_of(path));
    auto uploads = co_await files->list_uploads_below(std::move(path));
    co_return uploads;
  }
  Task<void> abort_upload(std::string path, std::string id) override {
    CKPT_CO_TRY(BucketFileSystem* const files, buckets_of(path));
    Status done = co_await files->abort_upload(std::move(path), std::move(id));
    co_return done;
  }
  std::string silence(std::string_view path) const override {
    const auto place = parse_bucket_path(path);
    if (!place) return {};
    const Opened& opened = opened_[static_cast<std::size_t>(place->scheme)];
    return opened && *opened ? (**opened)->silence(path) : std::string();
  }

 private:
  Result<BucketFileSystem*> buckets_of(std::string_view path) {
    CKPT_TRY(const BucketPath place, parse_bucket_path(path));
    Opened& opened = opened_[static_cast<std::size_t>(place.scheme)];
    if (!opened) opened.emplace(open_(place.scheme));
    if (!*opened) return fail(opened->error());
    return (*opened)->get();
  }
  // Errors: those of check_path, and of what buckets need.
  Result<os::FileSystem*> files_of(std::string_view path) {
    CKPT_CHECK(check_path(path));
    if (!is_bucket_path(path)) return disk_.get();
    CKPT_TRY(BucketFileSystem* const files, buckets_of(path));
    return files;
  }

  std::unique_ptr<os::FileSystem> disk_;
  const OpenBuckets open_;
  using Opened = std::optional<Result<std::unique_ptr<BucketFileSystem>>>;
  std::array<Opened, 2> opened_;  // By scheme. None: no such bucket was asked for yet.
};

}  // namespace

std::unique_ptr<os::FileSystem> with_buckets(std::unique_ptr<os::FileSystem> disk, Clock& clock,
                                             os::DiskPriority priority, BucketUse use) {
  return with_buckets(std::move(disk), [&clock, priority, use = std::move(use)](Scheme scheme) {
    return open_buckets(scheme, clock, priority, use);
  });
}

std::unique_ptr<os::FileSystem> with_buckets(std::unique_ptr<os::FileSystem> disk,
                                             OpenBuckets open) {
  return std::make_unique<AnyFileSystem>(std::move(disk), std::move(open));
}

}  // namespace ckpt::bucket
