#include "cli/terminal.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "arena/arena_limits.hpp"
#include "cli/table.hpp"

namespace ckpt::cli {

namespace {

constexpr std::chrono::milliseconds shown_every{200};
constexpr const char* erase_line = "\r\x1b[K";

std::size_t width_of_output(int descriptor) {
  if (const char* given = std::getenv("COLUMNS"); given != nullptr) {
    const std::string_view text(given);
    std::size_t columns = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
    if (error == std::errc() && end == text.data() + text.size()) return columns;
  }
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

}  // namespace

std::size_t text_width() {
  return width_of_output(STDOUT_FILENO);
}

std::size_t error_width() {
  return ::isatty(STDERR_FILENO) == 1 ? width_of_output(STDERR_FILENO) : 0;
}

Progress::Progress(std::uint64_t bytes_total, bool is_wanted)
    : total_(bytes_total), is_shown_(is_wanted && ::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (is_shown_) fmt::print(stderr, "{}", erase_line);
}

void Progress::add(std::uint64_t bytes) {
  done_ += bytes;
  const Clock::time_point now = Clock::now();
  if (!is_shown_ || now - shown_at_ < shown_every) return;
  shown_at_ = now;
  const double seconds = std::chrono::duration<double>(now - began_).count();
  fmt::print(stderr, "{}{}", erase_line, progress_text(done_, total_, seconds));
}

std::string progress_text(std::uint64_t done, std::uint64_t total, double seconds) {
  const auto percent = total == 0 ? 100 : done * 100 / total;
  std::string text =
      fmt::format("{:3} %  {} of {}", percent, arena::human_bytes(done), arena::human_bytes(total));
  if (done == 0 || seconds <= 0) return text;
  const double rate = static_cast<double>(done) / seconds;
  const double left = static_cast<double>(total - std::min(done, total)) / rate;
  return text + fmt::format("  {}/s  {} left", arena::human_bytes(static_cast<std::uint64_t>(rate)),
                            human_seconds(static_cast<std::uint64_t>(left + 0.5)));
}

}  // namespace ckpt::cli
