#include "base/log.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <mutex>
#include <utility>

#include "base/units.hpp"

namespace ckpt {

namespace {

constexpr std::size_t line_bytes_max = 16 * KiB;  // Longer lines are cut: no event needs more.

std::string_view name_of(LogLevel level) {
  constexpr std::array<std::string_view, 4> names = {"debug", "info", "warning", "error"};
  return names[static_cast<std::size_t>(level)];
}

// The first conversion of a time reads TZ, and may come on any thread. Later ones do not.
[[maybe_unused]] const bool has_time_zone = (::tzset(), true);

// A full pipe blocks the caller, as in every program. Lines that a non-blocking pipe or a full disk
// refuses are lost: logging never fails its caller.
void write_whole(int fd, std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = ::write(fd, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    line.remove_prefix(static_cast<std::size_t>(written));
  }
}

// The log's file, if one was opened. Standard error is used while there is none.
class LogFile {
 public:
  // In a child whose parent was forked while another thread wrote a line: that thread is not there,
  // and would never give the lock back.
  void renew_lock() { std::construct_at(&mutex_); }

  Status open(const std::string& path, std::size_t bytes_max, int keep) {
    const std::lock_guard lock(mutex_);
    const int fd = open_append(path);
    if (fd < 0) {
      return fail(Errc::io, "open the log file " + path,
                  std::error_code(errno, std::generic_category()));
    }
    replace_fd(fd);
    path_ = path;
    bytes_max_ = bytes_max;
    keep_ = keep;
    return {};
  }

  void write(std::string_view line) {
    const std::lock_guard lock(mutex_);
    if (fd_ < 0) return write_whole(STDERR_FILENO, line);
    if (bytes_ != 0 && bytes_ + line.size() > bytes_max_) rotate();
    write_whole(fd_, line);
    bytes_ += line.size();
  }

 private:
  static int open_append(const std::string& path) {
    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600);
  }
  void replace_fd(int fd) {
    // In this order: a fork may come between, and the child must not write to a closed number.
    if (const int old = std::exchange(fd_, fd); old >= 0) ::close(old);
    struct stat status{};
    bytes_ = ::fstat(fd, &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
  }
  // If the file cannot be renamed or created, the old one keeps growing: a long log beats none.
  void rotate() {
    for (int older = keep_ - 1; older >= 1; --older) {
      std::rename(numbered(older).c_str(), numbered(older + 1).c_str());
    }
    if (keep_ > 0) {
      std::rename(path_.c_str(), numbered(1).c_str());
    } else {
      ::unlink(path_.c_str());
    }
    const int fd = open_append(path_);
    if (fd >= 0) replace_fd(fd);
  }
  std::string numbered(int number) const { return path_ + '.' + std::to_string(number); }

  std::mutex mutex_;
  std::string path_;
  std::size_t bytes_max_ = 0;
  std::size_t bytes_ = 0;
  int keep_ = 0;
  int fd_ = -1;
};

// Never destroyed: static destructors may still log.
LogFile& log_file() {
  static LogFile& file = *new LogFile;
  return file;
}
[[maybe_unused]] const int renewed_in_forks =
    ::pthread_atfork(nullptr, nullptr, [] { log_file().renew_lock(); });

std::atomic<Log::Sink> current_sink{nullptr};
std::atomic<LogLevel> least_level{LogLevel::info};  // Until log_level.cpp has read the choice.

// A name is never freed once it is set, so that writers may read it without a lock.
std::atomic<const std::string*> program{nullptr};

std::string format_line(LogLevel level, std::string_view text) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::tm utc{};
  ::gmtime_r(&now.tv_sec, &utc);
  const std::string* name = program.load();
  std::string line = fmt::format(
      "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z {} {} ", utc.tm_year + 1900, utc.tm_mon + 1,
      utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, now.tv_nsec / 1'000'000, name_of(level),
      name != nullptr ? std::string_view(*name) : std::string_view("libckpt"));
  line += text.substr(0, line_bytes_max);
  // One event is one line, whatever a name or a message from elsewhere contains.
  for (char& letter : line) {
    if (static_cast<unsigned char>(letter) < ' ') letter = ' ';
  }
  line += '\n';
  return line;
}

}  // namespace

void Log::set_sink(Sink sink) {
  current_sink.store(sink);
}
void Log::set_level(LogLevel least) {
  least_level.store(least);
}
void Log::set_program(std::string_view name) {
  // Other threads may still read the previous name, so it is never deleted.
  const std::string* now = program.load();
  if (now == nullptr || *now != name) program.store(new std::string(name));
}

Status Log::open_file(const std::string& path, std::size_t bytes_max, int keep) {
  return log_file().open(path, bytes_max, keep);
}

bool Log::is_enabled(LogLevel level) {
  return level >= least_level.load(std::memory_order_relaxed);
}

void Log::write(LogLevel level, std::string_view text) {
  try {
    const std::string line = format_line(level, text);
    if (const Sink sink = current_sink.load()) {
      sink(level, std::string_view(line).substr(0, line.size() - 1));
    } else {
      log_file().write(line);
    }
  } catch (const std::bad_alloc&) {
    // Without memory for the line, the event is lost.
  }
}

bool LogLimit::may_speak() {
  const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
  const double now = std::chrono::duration<double>(since_start).count();
  if (now - last_ < seconds_) {
    ++held_back_;
    return false;
  }
  last_ = now;
  return true;
}

}  // namespace ckpt
