// BucketFileSystem: the FileSystem seam over a server of buckets; paths are "s3://bucket/key".
//
// A directory is whatever has objects below it: making, syncing and removing one does nothing.
// There is no rename; `objects` has what takes its place.
//
// Threads:  one executor.
// Lifetime: files must not outlive it. Destroy it before the executor's context.
#pragma once

#include <memory>

#include "bucket/client.hpp"
#include "os/file_system.hpp"

namespace ckpt::bucket {

class BucketFileSystem final : public os::FileSystem, public os::Objects {
 public:
  explicit BucketFileSystem(std::unique_ptr<Client> client) : client_(std::move(client)) {}

  Task<std::unique_ptr<os::File>> create(std::string path, os::Caching caching) override;
  Task<std::unique_ptr<os::File>> open_read(std::string path, os::Caching caching) override;
  Task<std::vector<std::byte>> read_small(std::string path, std::uint64_t bytes_max) override;
  Task<void> write_small(std::string path, std::vector<std::byte> bytes) override;
  Task<void> append_small(std::string path, std::vector<std::byte> bytes,
                          os::Syncing syncing) override;
  Task<void> make_directory(std::string path) override;
  Task<void> rename(std::string from, std::string to, os::RenameMode mode) override;
  Task<void> remove_file(std::string path) override;
  Task<void> remove_directory(std::string path) override;
  Task<void> sync_directory(std::string path) override;
  Task<std::vector<os::DirectoryEntry>> list(std::string path) override;  // Nothing there: empty.
  Task<os::FileStatus> status(std::string path) override;
  Task<os::Space> space(std::string path) override;
  os::Objects* objects(std::string_view) override { return this; }

  Task<os::TaggedBytes> read_tagged(std::string path, std::uint64_t bytes_max) override;
  Task<void> put_small(std::string path, std::vector<std::byte> bytes,
                       os::PutCondition condition) override;
  Task<std::vector<os::ObjectEntry>> list_below(std::string path) override;
  Task<std::vector<os::Upload>> list_uploads_below(std::string path) override;
  Task<void> abort_upload(std::string path, std::string id) override;
  std::string silence(std::string_view path) const override;

 private:
  std::unique_ptr<Client> client_;
};

}  // namespace ckpt::bucket
