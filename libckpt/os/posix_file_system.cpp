#include "os/posix_file_system.hpp"

#include <algorithm>
#include <cerrno>

#include "base/units.hpp"
#include "os/path.hpp"
#include "os/posix_clone.hpp"

namespace ckpt::os {

namespace {

// Ranges: an unaligned start, the aligned middle that may bypass the cache, and the rest.
struct Ranges {
  std::uint64_t head_bytes = 0;
  std::uint64_t middle_bytes = 0;
};

Ranges cut(std::uint64_t offset, const std::byte* address, std::uint64_t bytes, bool is_direct) {
  Ranges ranges;
  const auto memory = reinterpret_cast<std::uintptr_t>(address);
  if (!is_direct || (memory - offset) % page_bytes != 0) {
    ranges.head_bytes = bytes;
    return ranges;
  }
  ranges.head_bytes = std::min(bytes, align_up(offset, page_bytes) - offset);
  ranges.middle_bytes = (bytes - ranges.head_bytes) / page_bytes * page_bytes;
  return ranges;
}

Unexpected already_closed(const OpenFile& file) {
  return fail(Errc::invalid_argument, "use " + display(file.path) + " after it was closed");
}

}  // namespace

bool PosixFile::is_refusal(const Status& status, const char* where) {
  if (status || status.error().cause() != std::errc::invalid_argument) return false;
  direct_refused_ = true;
  log_direct_refused(*file_, where, EINVAL);
  return true;
}

Task<void> PosixFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (closed_) co_return already_closed(*file_);
  const Ranges ranges = cut(offset, bytes.data(), bytes.size(), is_direct());
  const int cached = file_->buffered.number();
  if (ranges.head_bytes > 0) {
    CKPT_CO_CHECK(co_await write_through(cached, offset, bytes.first(ranges.head_bytes)));
  }
  const auto middle = bytes.subspan(ranges.head_bytes, ranges.middle_bytes);
  const std::uint64_t middle_offset = offset + ranges.head_bytes;
  if (!middle.empty()) {
    Status done = co_await write_through(file_->direct.number(), middle_offset, middle);
    if (is_refusal(done, "write")) {
      done = co_await write_through(cached, middle_offset, middle);
    }
    if (!done) co_return done;
  }
  const auto tail = bytes.subspan(ranges.head_bytes + ranges.middle_bytes);
  if (!tail.empty()) {
    CKPT_CO_CHECK(co_await write_through(cached, middle_offset + middle.size(), tail));
  }
  co_return Status();
}

Task<void> PosixFile::read_at(std::uint64_t offset, std::span<std::byte> bytes) {
  if (closed_) co_return already_closed(*file_);
  const Ranges ranges = cut(offset, bytes.data(), bytes.size(), is_direct());
  const int cached = file_->buffered.number();
  if (ranges.head_bytes > 0) {
    CKPT_CO_CHECK(co_await read_through(cached, offset, bytes.first(ranges.head_bytes)));
  }
  const auto middle = bytes.subspan(ranges.head_bytes, ranges.middle_bytes);
  const std::uint64_t middle_offset = offset + ranges.head_bytes;
  if (!middle.empty()) {
    Status done = co_await read_through(file_->direct.number(), middle_offset, middle);
    if (is_refusal(done, "read")) {
      done = co_await read_through(cached, middle_offset, middle);
    }
    if (!done) co_return done;
  }
  const auto tail = bytes.subspan(ranges.head_bytes + ranges.middle_bytes);
  if (!tail.empty()) {
    CKPT_CO_CHECK(co_await read_through(cached, middle_offset + middle.size(), tail));
  }
  co_return Status();
}

Task<void> PosixFile::allocate(std::uint64_t bytes) {
  if (closed_) co_return already_closed(*file_);
  std::function<Status()> work = [file = file_, bytes] { return allocate_file(*file, bytes); };
  Status done = co_await threads_.run<void>(std::move(work));
  co_return done;
}

Task<void> PosixFile::truncate(std::uint64_t bytes) {
  if (closed_) co_return already_closed(*file_);
  std::function<Status()> work = [file = file_, bytes] { return truncate_file(*file, bytes); };
  Status done = co_await threads_.run<void>(std::move(work));
  co_return done;
}

Task<void> PosixFile::clone_at(CloneRange range, CloneSource source) {
  if (closed_) co_return already_closed(*file_);
  std::function<Status()> work = [file = file_, range, from = std::move(source)] {
    return clone_range(*file, range, from);
  };
  Status done = co_await threads_.run<void>(std::move(work));
  co_return done;
}

Task<void> PosixFile::sync_data() {
  if (closed_) co_return already_closed(*file_);
  if (sync_failed_) {
    co_return fail(Errc::io, "sync " + display(file_->path) +
                                 ": an earlier sync of it failed, and "
                                 "a later one would prove nothing");
  }
  Status done = co_await sync_through();
  if (!done) sync_failed_ = true;
  co_return done;
}

Task<void> PosixFile::close() {
  if (closed_) co_return Status();
  closed_ = true;
  std::function<Status()> work = [file = file_] {
    if (file->drop_cache) drop_cache(*file);
    return close_file(*file);
  };
  Status done = co_await threads_.run<void>(std::move(work));
  co_return done;
}

Task<std::unique_ptr<File>> PosixFileSystem::create(std::string path, Caching caching) {
  std::function<Result<std::shared_ptr<OpenFile>>()> work = [path, caching] {
    return create_file(path, caching);
  };
  CKPT_CO_TRY(auto file, co_await threads_.run<std::shared_ptr<OpenFile>>(std::move(work)));
  co_return wrap(std::move(file));
}

Task<std::unique_ptr<File>> PosixFileSystem::open_read(std::string path, Caching caching) {
  std::function<Result<std::shared_ptr<OpenFile>>()> work = [path, caching] {
    return open_file(path, caching);
  };
  CKPT_CO_TRY(auto file, co_await threads_.run<std::shared_ptr<OpenFile>>(std::move(work)));
  co_return wrap(std::move(file));
}

Task<std::vector<std::byte>> PosixFileSystem::read_small(std::string path,
                                                         std::uint64_t bytes_max) {
  std::function<Result<std::vector<std::byte>>()> work = [path, bytes_max] {
    return read_small_file(path, bytes_max);
  };
  auto done = co_await threads_.run<std::vector<std::byte>>(std::move(work));
  co_return done;
}

Task<void> PosixFileSystem::write_small(std::string path, std::vector<std::byte> bytes) {
  std::function<Status()> work = [path, content = std::move(bytes)] {
    return write_small_file(path, content);
  };
  Status done = co_await threads_.run<void>(std::move(work));
  co_return done;
}

Task<void> PosixFileSystem::append_small(std::string path, std::vector<std::byte> bytes,
                                         Syncing syncing) {
  std::function<Status()> work = [path, content = std::move(bytes), syncing] {
    return append_small_file(path, content, syncing);
  };
  Status done = co_await threads_.run<void>(std::move(work));
  co_return done;
}

Task<void> PosixFileSystem::make_directory(std::string path) {
  std::function<Status()> work = [path] { return make_directory_at(path); };
  Status done = co_await threads_.run<void>(std::move(work));
  co_return done;
}

Task<void> PosixFileSystem::rename(std::string from, std::string to, RenameMode mode) {
  std::function<Status()> work = [from, to, mode] { return rename_path(from, to, mode); };
  Status done = co_await threads_.run<void>(std::move(work));
  co_return done;
}

Task<void> PosixFileSystem::remove_file(std::string path) {
  std::function<Status()> work = [path] { return remove_file_at(path); };
  Status done = co_await threads_.run<void>(std::move(work));
  co_return done;
}

Task<void> PosixFileSystem::remove_directory(std::string path) {
  std::function<Status()> work = [path] { return remove_directory_at(path); };
  Status done = co_await threads_.run<void>(std::move(work));
  co_return done;
}

Task<void> PosixFileSystem::sync_directory(std::string path) {
  std::function<Status()> work = [path] { return sync_directory_at(path); };
  Status done = co_await threads_.run<void>(std::move(work));
  co_return done;
}

Task<std::vector<DirectoryEntry>> PosixFileSystem::list(std::string path) {
  std::function<Result<std::vector<DirectoryEntry>>()> work = [path] {
    return list_directory(path);
  };
  auto done = co_await threads_.run<std::vector<DirectoryEntry>>(std::move(work));
  co_return done;
}

Task<FileStatus> PosixFileSystem::status(std::string path) {
  std::function<Result<FileStatus>()> work = [path] { return status_of(path); };
  auto done = co_await threads_.run<FileStatus>(std::move(work));
  co_return done;
}

Task<Space> PosixFileSystem::space(std::string path) {
  std::function<Result<Space>()> work = [path] { return space_of(path); };
  auto done = co_await threads_.run<Space>(std::move(work));
  co_return done;
}

}  // namespace ckpt::os
