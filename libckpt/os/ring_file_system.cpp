#include "os/ring_file_system.hpp"

#include "base/log.hpp"
#include "os/path.hpp"
#include "os/pool_file_system.hpp"
#include "os/posix_file_system.hpp"
#include "os/ring.hpp"
#include "os/storage_error.hpp"

namespace ckpt::os {

namespace {

// For calls that block beside the ring: opens, renames, small files.
constexpr std::size_t helper_threads = 2;

asio::awaitable<std::int64_t> await_request(Ring& ring, RingRequest request) {
  // Shared, because a std::function must be copyable; it is called once.
  const auto shared = std::make_shared<RingRequest>(std::move(request));
  StartWork start = [&ring, shared](std::unique_ptr<Completion> completion) {
    shared->completion = std::move(completion);
    ring.submit(std::move(*shared));
  };
  const std::int64_t result = co_await await_completion(std::move(start));
  co_return result;
}

class RingFile final : public PosixFile {
 public:
  RingFile(std::shared_ptr<OpenFile> file, DiskThreads& threads, Ring& ring)
      : PosixFile(std::move(file), threads), ring_(ring) {}

 protected:
  Task<void> write_through(int fd, std::uint64_t offset,
                           std::span<const std::byte> bytes) override {
    RingRequest request = make_request(RingVerb::write, fd, offset, bytes.size());
    // The ring's one pointer serves both directions; a write only reads from it.
    request.address = const_cast<std::byte*>(bytes.data());
    const auto opened = file();
    const std::int64_t done = co_await await_request(ring_, std::move(request));
    if (done < 0) co_return failed("write", *opened, static_cast<int>(-done));
    if (static_cast<std::uint64_t>(done) < bytes.size()) co_return failed("write", *opened, EIO);
    co_return Status();
  }

  Task<void> read_through(int fd, std::uint64_t offset, std::span<std::byte> bytes) override {
    RingRequest request = make_request(RingVerb::read, fd, offset, bytes.size());
    request.address = bytes.data();
    const auto opened = file();
    const std::int64_t result = co_await await_request(ring_, std::move(request));
    if (result < 0) co_return failed("read", *opened, static_cast<int>(-result));
    const auto done = static_cast<std::uint64_t>(result);
    if (done < bytes.size()) {
      co_return file_too_short(opened->path, offset + done, bytes.size() - done);
    }
    co_return Status();
  }

  Task<void> sync_through() override {
    RingRequest request = make_request(RingVerb::sync_data, file()->buffered.number(), 0, 0);
    const auto opened = file();
    const std::int64_t done = co_await await_request(ring_, std::move(request));
    if (done < 0) co_return failed("sync", *opened, static_cast<int>(-done));
    co_return Status();  // close() drops the cache on a helper thread, since that may block.
  }

 private:
  RingRequest make_request(RingVerb verb, int fd, std::uint64_t offset, std::uint64_t bytes) const {
    RingRequest request;
    request.verb = verb;
    request.fd = fd;
    request.is_direct = fd == file()->direct.number();
    request.offset = offset;
    request.bytes = bytes;
    request.keep_alive = file();
    return request;
  }

  static Unexpected failed(const char* doing, const OpenFile& opened, int error) {
    return storage_failure(error, std::string(doing) + " " + display(opened.path));
  }

  Ring& ring_;
};

class RingFileSystem final : public PosixFileSystem {
 public:
  RingFileSystem(std::unique_ptr<Ring> ring, DiskPriority priority)
      : PosixFileSystem(helper_threads, priority), ring_(std::move(ring)) {}

 protected:
  std::unique_ptr<File> wrap(std::shared_ptr<OpenFile> file) override {
    return std::make_unique<RingFile>(std::move(file), threads(), *ring_);
  }

 private:
  std::unique_ptr<Ring> ring_;
};

}  // namespace

Result<std::unique_ptr<FileSystem>> make_ring_file_system(DiskPriority priority) {
  CKPT_TRY(auto ring, Ring::open(priority));
  return std::unique_ptr<FileSystem>(std::make_unique<RingFileSystem>(std::move(ring), priority));
}

std::unique_ptr<FileSystem> make_file_system(DiskPriority priority) {
  auto on_ring = make_ring_file_system(priority);
  if (on_ring) return std::move(on_ring).value();
  static LogLimit once(1e9);
  if (once.may_speak()) {
    log_warning("storage: no io_uring here ({}); {} threads do its work, more slowly",
                on_ring.error().message(), disk_thread_count);
  }
  return make_pool_file_system(disk_thread_count, priority);
}

}  // namespace ckpt::os
