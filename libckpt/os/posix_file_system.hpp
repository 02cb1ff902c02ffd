// PosixFileSystem: every part of a FileSystem but the transfer of large data, on DiskThreads.
//
// The pool and the ring derive from it and add only how an open file reads and writes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "os/disk_threads.hpp"
#include "os/file_system.hpp"
#include "os/posix_files.hpp"

namespace ckpt::os {

class PosixFileSystem : public FileSystem {
 public:
  PosixFileSystem(std::size_t threads, DiskPriority priority) : threads_(threads, priority) {}

  Task<std::unique_ptr<File>> create(std::string path, Caching caching) override;
  Task<std::unique_ptr<File>> open_read(std::string path, Caching caching) override;
  Task<std::vector<std::byte>> read_small(std::string path, std::uint64_t bytes_max) override;
  Task<void> write_small(std::string path, std::vector<std::byte> bytes) override;
  Task<void> append_small(std::string path, std::vector<std::byte> bytes, Syncing syncing) override;
  Task<void> make_directory(std::string path) override;
  Task<void> rename(std::string from, std::string to, RenameMode mode) override;
  Task<void> remove_file(std::string path) override;
  Task<void> remove_directory(std::string path) override;
  Task<void> sync_directory(std::string path) override;
  Task<std::vector<DirectoryEntry>> list(std::string path) override;
  Task<FileStatus> status(std::string path) override;
  Task<Space> space(std::string path) override;

 protected:
  virtual std::unique_ptr<File> wrap(std::shared_ptr<OpenFile> file) = 0;
  DiskThreads& threads() { return threads_; }

 private:
  DiskThreads threads_;
};

// PosixFile: picks the descriptor for each range, and keeps a failed sync failed.
class PosixFile : public File {
 public:
  explicit PosixFile(std::shared_ptr<OpenFile> file, DiskThreads& threads)
      : file_(std::move(file)), threads_(threads) {}

  Task<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override;
  Task<void> read_at(std::uint64_t offset, std::span<std::byte> bytes) override;
  Task<void> allocate(std::uint64_t bytes) override;
  Task<void> truncate(std::uint64_t bytes) override;
  Task<void> clone_at(CloneRange range, CloneSource source) override;
  Task<void> sync_data() override;
  Task<void> close() override;
  bool is_direct() const override { return file_->direct.number() >= 0 && !direct_refused_; }

 protected:
  // Transfers all bytes through one descriptor. If O_DIRECT is refused: invalid_argument, cause
  // EINVAL.
  virtual Task<void> write_through(int fd, std::uint64_t offset,
                                   std::span<const std::byte> bytes) = 0;
  virtual Task<void> read_through(int fd, std::uint64_t offset, std::span<std::byte> bytes) = 0;
  virtual Task<void> sync_through() = 0;
  // Every call in flight shares it: the descriptors close after the last of them.
  const std::shared_ptr<OpenFile>& file() const { return file_; }
  DiskThreads& threads() { return threads_; }

 private:
  bool is_refusal(const Status& status, const char* where);

  std::shared_ptr<OpenFile> file_;
  DiskThreads& threads_;
  bool direct_refused_ = false;
  bool sync_failed_ = false;
  bool closed_ = false;
};

}  // namespace ckpt::os
