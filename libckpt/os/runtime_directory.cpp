#include "os/runtime_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace ckpt::os {

namespace {

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

bool is_directory_of(const std::string& path, uid_t user) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == user;
}

std::string choose(const std::string& given) {
  if (!given.empty()) return given;
  if (auto path = from_environment("LIBCKPT_RUNTIME_DIR"); !path.empty()) return path;
  if (const auto base = from_environment("XDG_RUNTIME_DIR"); !base.empty())
    return base + "/libckpt";
  const auto user = ::geteuid();
  const std::string base = fmt::format("/run/user/{}", user);
  if (is_directory_of(base, user)) return base + "/libckpt";
  return fmt::format("/tmp/libckpt-{}", user);
}

Status check(const std::string& path, const struct stat& status) {
  const auto refuse = [&](std::string_view why) {
    return fail(Errc::invalid_argument,
                fmt::format("use runtime directory {}: {}; name another one with "
                            "LIBCKPT_RUNTIME_DIR",
                            path, why));
  };
  if (S_ISLNK(status.st_mode)) return refuse("it is a symbolic link");
  if (!S_ISDIR(status.st_mode)) return refuse("it is not a directory");
  if (status.st_uid != ::geteuid())
    return refuse(
        fmt::format("it belongs to uid {}, and we are uid {}", status.st_uid, ::geteuid()));
  if ((status.st_mode & 077) != 0)
    return refuse(fmt::format("its mode {:04o} lets others in, it must be 0700: chmod 700 {}",
                              status.st_mode & 07777, path));
  return {};
}

Result<std::string> choose_absolute(const std::string& given) {
  std::string path = choose(given);
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (path.empty() || path.front() != '/')
    return fail(Errc::invalid_argument,
                fmt::format("use runtime directory \"{}\": it must start with /", path));
  return path;
}

}  // namespace

Result<RuntimeDirectory> RuntimeDirectory::open(const std::string& given) {
  CKPT_TRY(std::string path, choose_absolute(given));
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return fail_system("create runtime directory " + path);
  return look_at(std::move(path));
}

Result<RuntimeDirectory> RuntimeDirectory::find(const std::string& given) {
  CKPT_TRY(std::string path, choose_absolute(given));
  return look_at(std::move(path));
}

Result<RuntimeDirectory> RuntimeDirectory::look_at(std::string path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return fail(Errc::not_found, "there is no runtime directory " + path);
    return fail_system("look at runtime directory " + path);
  }
  CKPT_CHECK(check(path, status));
  return RuntimeDirectory(std::move(path));
}

Result<LockFile> LockFile::acquire(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return fail_system("open lock " + path);
  if (::flock(fd.number(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      return fail(Errc::unavailable, "lock " + path + ": another process holds it");
    return fail_system("lock " + path);
  }
  LockFile lock(std::move(fd));
  if (!lock.is_at(path))
    return fail(Errc::unavailable, "lock " + path + ": it was removed meanwhile");
  return lock;
}

bool LockFile::is_held(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  // A shared lock, so that two processes that only look do not take each other for the holder.
  return fd && ::flock(fd.number(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

bool LockFile::is_at(const std::string& path) const {
  struct stat ours{}, found{};
  return fd_ && ::fstat(fd_.number(), &ours) == 0 && ::lstat(path.c_str(), &found) == 0 &&
         ours.st_ino == found.st_ino && ours.st_dev == found.st_dev;
}

LockFile& LockFile::operator=(LockFile&& other) noexcept {
  if (this == &other) return *this;
  unlock();
  fd_ = std::move(other.fd_);
  return *this;
}

// Closing is not enough: a forked child that has the descriptor too would keep the lock.
void LockFile::unlock() {
  if (fd_) ::flock(fd_.number(), LOCK_UN);
}

}  // namespace ckpt::os
