#include "os/posix_files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <set>

#include "base/log.hpp"
#include "base/units.hpp"
#include "os/path.hpp"
#include "os/storage_error.hpp"

namespace ckpt::os {

namespace {

// A full disk must not stop the deletion log: each append reserves this much room behind itself.
constexpr std::uint64_t append_reserve_bytes = 64 * KiB;
// The most bytes of one call: Linux stops at 2 GiB - 4 KiB anyway.
constexpr std::uint64_t call_bytes_max = 1 * GiB;

template <class Call>
auto repeat_interrupted(Call call) {
  while (true) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

Unexpected failed(const char* doing, const std::string& path, int error = errno) {
  return storage_failure(error, std::string(doing) + " " + display(path));
}

// Resolved: the directory and the name of a path's last component.
struct Resolved {
  Fd parent;
  std::string name;
};

Result<Resolved> resolve(const std::string& path, const char* doing) {
  CKPT_TRY(SplitPath parts, split(path));
  Resolved place;
  place.parent = Fd(repeat_interrupted(
      [&] { return ::open(parts.root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC); }));
  if (place.parent.number() < 0) return failed(doing, path);
  place.name = parts.names.empty() ? "." : parts.names.back();
  for (std::size_t index = 0; index + 1 < parts.names.size(); ++index) {
    Fd next(repeat_interrupted([&] {
      return ::openat(place.parent.number(), parts.names[index].c_str(),
                      O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }));
    if (next.number() < 0) return failed(doing, path);
    place.parent = std::move(next);
  }
  return place;
}

int open_at(const Resolved& place, int flags, mode_t mode = 0) {
  return repeat_interrupted([&] {
    return ::openat(place.parent.number(), place.name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC,
                    mode);
  });
}

bool is_same_inode(int first, int second) {
  struct stat one{};
  struct stat two{};
  if (::fstat(first, &one) != 0 || ::fstat(second, &two) != 0) return false;
  return one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}

EntryKind kind_of(mode_t mode) {
  if (S_ISREG(mode)) return EntryKind::file;
  if (S_ISDIR(mode)) return EntryKind::directory;
  if (S_ISLNK(mode)) return EntryKind::symlink;
  return EntryKind::other;
}

Status finish_opening(OpenFile& file, const Resolved& place, int flags, Caching caching) {
  struct stat status{};
  if (::fstat(file.buffered.number(), &status) != 0) return failed("open", file.path);
  if (!S_ISREG(status.st_mode)) {
    return fail(Errc::invalid_argument, "open " + display(file.path) + ": it is no regular file");
  }
  file.device = status.st_dev;
  if (caching != Caching::direct) return {};
  file.drop_cache = true;
  file.direct = Fd(open_at(place, flags | O_DIRECT));
  if (file.direct.number() < 0) {
    if (errno != EINVAL && errno != EOPNOTSUPP) return failed("open", file.path);
    log_direct_refused(file, "open", errno);
    return {};
  }
  if (!is_same_inode(file.buffered.number(), file.direct.number())) {
    return fail(Errc::io, "open " + display(file.path) + ": it was replaced while it was opened");
  }
  return {};
}

}  // namespace

void log_direct_refused(const OpenFile& file, const char* where, int error) {
  static std::mutex mutex;
  static std::set<std::uint64_t> devices_said;
  {
    const std::lock_guard lock(mutex);
    if (!devices_said.insert(file.device).second) return;
  }
  log_warning(
      "storage: O_DIRECT is refused at {} of {} ({}): this device gets buffered writes, and the "
      "cache is dropped behind them",
      where, display(file.path), std::generic_category().message(error));
}

Result<std::shared_ptr<OpenFile>> create_file(const std::string& path, Caching caching) {
  CKPT_TRY(const Resolved place, resolve(path, "create"));
  auto file = std::make_shared<OpenFile>();
  file->path = path;
  file->buffered = Fd(open_at(place, O_RDWR | O_CREAT | O_EXCL, 0600));
  if (file->buffered.number() < 0) return failed("create", path);
  CKPT_CHECK(finish_opening(*file, place, O_RDWR, caching));
  return file;
}

Result<std::shared_ptr<OpenFile>> open_file(const std::string& path, Caching caching) {
  CKPT_TRY(const Resolved place, resolve(path, "open"));
  auto file = std::make_shared<OpenFile>();
  file->path = path;
  // O_NONBLOCK: opening a FIFO of that name must not block the thread. Regular files ignore it.
  file->buffered = Fd(open_at(place, O_RDONLY | O_NONBLOCK));
  if (file->buffered.number() < 0) return failed("open", path);
  CKPT_CHECK(finish_opening(*file, place, O_RDONLY, caching));
  return file;
}

Status write_all(int fd, std::uint64_t offset, std::span<const std::byte> bytes,
                 const std::string& path) {
  while (!bytes.empty()) {
    const std::size_t wanted = std::min<std::uint64_t>(bytes.size(), call_bytes_max);
    const ssize_t done = repeat_interrupted(
        [&] { return ::pwrite(fd, bytes.data(), wanted, static_cast<off_t>(offset)); });
    if (done < 0) return failed("write", path);
    if (done == 0) return failed("write", path, EIO);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return {};
}

Status read_all(int fd, std::uint64_t offset, std::span<std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const std::size_t wanted = std::min<std::uint64_t>(bytes.size(), call_bytes_max);
    const ssize_t done = repeat_interrupted(
        [&] { return ::pread(fd, bytes.data(), wanted, static_cast<off_t>(offset)); });
    if (done < 0) return failed("read", path);
    if (done == 0) return file_too_short(path, offset, bytes.size());
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return {};
}

Unexpected file_too_short(const std::string& path, std::uint64_t offset, std::uint64_t missing) {
  return fail(Errc::corruption,
              fmt::format("read {}: the file ends at byte {}, {} bytes before it should",
                          display(path), offset, missing));
}

Status allocate_file(const OpenFile& file, std::uint64_t bytes) {
  if (bytes == 0) return {};
  const int result = repeat_interrupted(
      [&] { return ::fallocate(file.buffered.number(), 0, 0, static_cast<off_t>(bytes)); });
  if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return {};
  return failed("allocate", file.path);
}

Status truncate_file(const OpenFile& file, std::uint64_t bytes) {
  const int result = repeat_interrupted(
      [&] { return ::ftruncate(file.buffered.number(), static_cast<off_t>(bytes)); });
  if (result != 0) return failed("truncate", file.path);
  return {};
}

Status sync_file_data(const OpenFile& file) {
  // Never repeated, not even after EINTR: a second call may hide the loss that the first one saw.
  if (::fdatasync(file.buffered.number()) != 0) return failed("sync", file.path);
  if (file.drop_cache) drop_cache(file);
  return {};
}

void drop_cache(const OpenFile& file) {
  (void)::posix_fadvise(file.buffered.number(), 0, 0, POSIX_FADV_DONTNEED);
}

Status close_file(OpenFile& file) {
  int error = 0;
  for (Fd* fd : {&file.direct, &file.buffered}) {
    const int number = fd->release();
    // Linux has closed the descriptor even when it was interrupted.
    if (number >= 0 && ::close(number) != 0 && errno != EINTR) error = errno;
  }
  if (error != 0) return failed("close", file.path, error);
  return {};
}

Result<std::vector<std::byte>> read_small_file(const std::string& path, std::uint64_t bytes_max) {
  CKPT_TRY(const auto file, open_file(path, Caching::buffered));
  struct stat status{};
  if (::fstat(file->buffered.number(), &status) != 0) return failed("read", path);
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  if (bytes > bytes_max) {
    return fail(Errc::corruption, fmt::format("read {}: it has {} bytes, the limit is {}",
                                              display(path), bytes, bytes_max));
  }
  std::vector<std::byte> content(bytes);
  CKPT_CHECK(read_all(file->buffered.number(), 0, content, path));
  return content;
}

Status write_small_file(const std::string& path, std::span<const std::byte> bytes) {
  CKPT_TRY(const auto file, create_file(path, Caching::buffered));
  CKPT_CHECK(write_all(file->buffered.number(), 0, bytes, path));
  CKPT_CHECK(sync_file_data(*file));
  return close_file(*file);
}

Status append_small_file(const std::string& path, std::span<const std::byte> bytes,
                         Syncing syncing) {
  CKPT_TRY(const Resolved place, resolve(path, "append to"));
  OpenFile file;
  file.path = path;
  file.buffered = Fd(open_at(place, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK, 0600));
  if (file.buffered.number() < 0) return failed("append to", path);
  struct stat status{};
  if (::fstat(file.buffered.number(), &status) != 0) return failed("append to", path);
  if (!S_ISREG(status.st_mode)) {
    return fail(Errc::invalid_argument, "append to " + display(path) + ": it is no regular file");
  }
  while (!bytes.empty()) {
    const ssize_t done = repeat_interrupted(
        [&] { return ::write(file.buffered.number(), bytes.data(), bytes.size()); });
    if (done <= 0) return failed("append to", path, done == 0 ? EIO : errno);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  // Best effort: without it, the next append fails only on a full disk.
  if (::fstat(file.buffered.number(), &status) == 0) {
    (void)::fallocate(file.buffered.number(), FALLOC_FL_KEEP_SIZE, status.st_size,
                      static_cast<off_t>(append_reserve_bytes));
  }
  if (syncing == Syncing::now) CKPT_CHECK(sync_file_data(file));
  return close_file(file);
}

Status make_directory_at(const std::string& path) {
  CKPT_TRY(const Resolved place, resolve(path, "make directory"));
  if (::mkdirat(place.parent.number(), place.name.c_str(), 0700) == 0) return {};
  if (errno != EEXIST) return failed("make directory", path);
  struct stat status{};
  if (::fstatat(place.parent.number(), place.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return failed("make directory", path);
  }
  if (!S_ISDIR(status.st_mode)) return failed("make directory", path, ENOTDIR);
  return {};
}

namespace {

// Replaces RENAME_NOREPLACE where the file system (NFS) lacks it. link() fails if the target
// exists; a directory cannot replace another that is not empty.
int rename_without_flags(const Resolved& from, const Resolved& to) {
  struct stat status{};
  const int target = to.parent.number();
  if (::fstatat(target, to.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return EEXIST;
  const int source = from.parent.number();
  if (::fstatat(source, from.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return errno;
  if (S_ISDIR(status.st_mode)) {
    if (::renameat(source, from.name.c_str(), target, to.name.c_str()) == 0) return 0;
    return errno == ENOTEMPTY ? EEXIST : errno;
  }
  if (::linkat(source, from.name.c_str(), target, to.name.c_str(), 0) != 0) return errno;
  return ::unlinkat(source, from.name.c_str(), 0) == 0 ? 0 : errno;
}

}  // namespace

Status rename_path(const std::string& from, const std::string& to, RenameMode mode) {
  CKPT_TRY(const Resolved source, resolve(from, "rename"));
  CKPT_TRY(const Resolved target, resolve(to, "rename"));
  const unsigned flags = mode == RenameMode::no_replace ? RENAME_NOREPLACE
                         : mode == RenameMode::exchange ? RENAME_EXCHANGE
                                                        : 0u;
  int error = 0;
  if (::renameat2(source.parent.number(), source.name.c_str(), target.parent.number(),
                  target.name.c_str(), flags) != 0) {
    error = errno;
  }
  const bool flags_unknown = error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
  if (flags_unknown && mode == RenameMode::no_replace) error = rename_without_flags(source, target);
  if (flags_unknown && mode == RenameMode::exchange) error = EOPNOTSUPP;
  if (error != 0) return failed("rename", from + " to " + display(to), error);
  return {};
}

Status remove_file_at(const std::string& path) {
  CKPT_TRY(const Resolved place, resolve(path, "remove"));
  if (::unlinkat(place.parent.number(), place.name.c_str(), 0) != 0) return failed("remove", path);
  return {};
}

Status remove_directory_at(const std::string& path) {
  CKPT_TRY(const Resolved place, resolve(path, "remove directory"));
  if (::unlinkat(place.parent.number(), place.name.c_str(), AT_REMOVEDIR) != 0) {
    return failed("remove directory", path);
  }
  return {};
}

Status sync_directory_at(const std::string& path) {
  CKPT_TRY(const Resolved place, resolve(path, "sync directory"));
  const Fd directory(open_at(place, O_RDONLY | O_DIRECTORY));
  if (directory.number() < 0) return failed("sync directory", path);
  if (::fsync(directory.number()) == 0) return {};
  // Some network file systems return this because they have nothing to sync for directories.
  if (errno == EINVAL || errno == EOPNOTSUPP) return {};
  return failed("sync directory", path);
}

Result<std::vector<DirectoryEntry>> list_directory(const std::string& path) {
  CKPT_TRY(const Resolved place, resolve(path, "list"));
  Fd directory(open_at(place, O_RDONLY | O_DIRECTORY));
  if (directory.number() < 0) return failed("list", path);
  const int number = directory.number();
  DIR* stream = ::fdopendir(number);
  if (stream == nullptr) return failed("list", path);
  (void)directory.release();  // The stream closes it.
  std::vector<DirectoryEntry> entries;
  errno = 0;
  while (const dirent* found = ::readdir(stream)) {
    const std::string name = found->d_name;
    if (name != "." && name != "..") {
      struct stat status{};
      // An entry that has vanished meanwhile is not listed.
      if (::fstatat(number, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
        entries.push_back(DirectoryEntry{name, kind_of(status.st_mode)});
      }
    }
    errno = 0;
  }
  const int error = errno;
  ::closedir(stream);
  if (error != 0) return failed("list", path, error);
  std::sort(entries.begin(), entries.end(),
            [](const DirectoryEntry& left, const DirectoryEntry& right) {
              return left.name < right.name;
            });
  return entries;
}

namespace {

// Two bind mounts of one file system have the same device.
std::uint64_t mount_of([[maybe_unused]] int parent, [[maybe_unused]] const std::string& name) {
#ifdef STATX_MNT_ID
  struct statx status{};
  const int failed = ::statx(parent, name.c_str(), AT_SYMLINK_NOFOLLOW, STATX_MNT_ID, &status);
  if (failed == 0 && (status.stx_mask & STATX_MNT_ID) != 0) return status.stx_mnt_id;
#endif
  return 0;
}

std::int64_t nanoseconds(const struct timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

FileStatus to_file_status(const struct ::stat& status) {
  FileStatus result;
  result.kind = kind_of(status.st_mode);
  result.bytes = static_cast<std::uint64_t>(status.st_size);
  result.device = status.st_dev;
  result.inode = status.st_ino;
  result.modified_ns = nanoseconds(status.st_mtim);
  result.changed_ns = nanoseconds(status.st_ctim);
  return result;
}

Result<FileStatus> status_of(const std::string& path) {
  CKPT_TRY(const Resolved place, resolve(path, "look at"));
  struct stat status{};
  if (::fstatat(place.parent.number(), place.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return failed("look at", path);
  }
  FileStatus result = to_file_status(status);
  if (result.kind == EntryKind::directory)
    result.mount = mount_of(place.parent.number(), place.name);
  return result;
}

Result<Space> space_of(const std::string& path) {
  struct statvfs status{};
  if (::statvfs(path.c_str(), &status) != 0) return failed("measure the space at", path);
  Space space;
  space.bytes_free = static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
  space.bytes_total = static_cast<std::uint64_t>(status.f_blocks) * status.f_frsize;
  return space;
}

}  // namespace ckpt::os
