// Log: structured lines, one per event, to a file that rotates or to standard error.
//
//   2026-11-21T09:00:00.123Z info ckptd job=gpt2 step=900 sealed bytes=1048576
//
// Threads: any. A line is formatted by its caller and written whole.
#pragma once

#include <fmt/format.h>

#include <ckpt/result.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace ckpt {

enum class LogLevel : unsigned char { debug, info, warning, error };

class Log {
 public:
  // Every line goes through here, so that a test or an embedding program can redirect it.
  using Sink = void (*)(LogLevel level, std::string_view line);
  static void set_sink(Sink sink);
  static void set_level(LogLevel least);
  static void set_program(std::string_view name);
  // Appends to `path`; at `bytes_max` the file becomes `path.1`, and the older ones move up.
  static Status open_file(const std::string& path, std::size_t bytes_max = 16u << 20, int keep = 3);

  static bool is_enabled(LogLevel level);
  static void write(LogLevel level, std::string_view text);
};

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (Log::is_enabled(level)) Log::write(level, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::info, format, std::forward<Args>(args)...);
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::warning, format, std::forward<Args>(args)...);
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::error, format, std::forward<Args>(args)...);
}

// LogLimit: allows a place one message per interval (infinity: one ever), and counts the rest.
// Threads: one.
class LogLimit {
 public:
  explicit LogLimit(double seconds) : seconds_(seconds) {}
  bool may_speak();
  std::uint64_t held_back() const { return held_back_; }

 private:
  double seconds_;
  double last_ = -std::numeric_limits<double>::infinity();
  std::uint64_t held_back_ = 0;
};

}  // namespace ckpt
