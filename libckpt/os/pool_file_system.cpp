#include "os/pool_file_system.hpp"

#include "os/posix_file_system.hpp"

namespace ckpt::os {

namespace {

class PoolFile final : public PosixFile {
 public:
  using PosixFile::PosixFile;

 protected:
  Task<void> write_through(int fd, std::uint64_t offset,
                           std::span<const std::byte> bytes) override {
    std::function<Status()> work = [opened = file(), fd, offset, bytes] {
      return write_all(fd, offset, bytes, opened->path);
    };
    Status done = co_await threads().run<void>(std::move(work));
    co_return done;
  }
  Task<void> read_through(int fd, std::uint64_t offset, std::span<std::byte> bytes) override {
    std::function<Status()> work = [opened = file(), fd, offset, bytes] {
      return read_all(fd, offset, bytes, opened->path);
    };
    Status done = co_await threads().run<void>(std::move(work));
    co_return done;
  }
  Task<void> sync_through() override {
    std::function<Status()> work = [opened = file()] { return sync_file_data(*opened); };
    Status done = co_await threads().run<void>(std::move(work));
    co_return done;
  }
};

class PoolFileSystem final : public PosixFileSystem {
 public:
  using PosixFileSystem::PosixFileSystem;

 protected:
  std::unique_ptr<File> wrap(std::shared_ptr<OpenFile> file) override {
    return std::make_unique<PoolFile>(std::move(file), threads());
  }
};

}  // namespace

std::unique_ptr<FileSystem> make_pool_file_system(std::size_t threads, DiskPriority priority) {
  return std::make_unique<PoolFileSystem>(threads, priority);
}

}  // namespace ckpt::os
