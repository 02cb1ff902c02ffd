#include "os/small_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace ckpt::os {

namespace {

constexpr off_t tail_bytes = 4096;

}  // namespace

Status replace_file(const std::string& path, const std::string& text) {
  const std::string fresh = fmt::format("{}.{}", path, ::getpid());
  Fd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return fail_system("create " + fresh);
  const auto written = ::write(fd.number(), text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size())) {
    const auto cause = last_system_error();
    ::unlink(fresh.c_str());
    return fail_system("write " + fresh, cause);
  }
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    const auto cause = last_system_error();
    ::unlink(fresh.c_str());
    return fail_system("rename " + fresh + " to " + path, cause);
  }
  return {};
}

Result<Fd> open_regular_file(const std::string& path) {
  // O_NONBLOCK: opening a FIFO of that name must not block the thread. Regular files ignore it.
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) {
    if (errno == ENOENT) return fail(Errc::not_found, "read " + path + ": there is no such file");
    return fail_system("open " + path);
  }
  struct stat status{};
  if (::fstat(fd.number(), &status) != 0) return fail_system("look at " + path);
  if (S_ISDIR(status.st_mode))
    return fail(Errc::invalid_argument, "read " + path + ": it is a directory");
  if (!S_ISREG(status.st_mode))
    return fail(Errc::invalid_argument, "read " + path + ": it is no regular file");
  return fd;
}

Result<std::size_t> read_whole(const Fd& fd, std::span<std::byte> room, const std::string& path) {
  std::size_t filled = 0;
  while (filled < room.size()) {
    const auto count = ::read(fd.number(), room.data() + filled, room.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail_system("read " + path);
    if (count == 0) return filled;
    filled += static_cast<std::size_t>(count);
  }
  return fail(Errc::exhausted, fmt::format("read {}: more than {} bytes", path, room.size() - 1));
}

Result<std::string> read_file(const std::string& path, std::size_t bytes_max) {
  CKPT_TRY(const Fd fd, open_regular_file(path));
  std::string text(bytes_max + 1, '\0');
  CKPT_TRY(const std::size_t bytes,
           read_whole(fd, std::as_writable_bytes(std::span(text.data(), text.size())), path));
  text.resize(bytes);
  return text;
}

std::uint64_t file_bytes(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

std::string last_line(const std::string& path, std::uint64_t from) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return {};
  const off_t end = ::lseek(fd.number(), 0, SEEK_END);
  // Shorter than before: another file has taken its place, as when a log rotates.
  const off_t begin = static_cast<off_t>(from) <= end ? static_cast<off_t>(from) : 0;
  if (end <= begin) return {};
  std::string text(static_cast<std::size_t>(std::min(end - begin, tail_bytes)), '\0');
  const auto count =
      ::pread(fd.number(), text.data(), text.size(), end - static_cast<off_t>(text.size()));
  if (count <= 0) return {};
  text.resize(static_cast<std::size_t>(count));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const auto newline = text.rfind('\n');
  return newline == std::string::npos ? text : text.substr(newline + 1);
}

void remove_file(const std::string& path) {
  ::unlink(path.c_str());
}

}  // namespace ckpt::os
