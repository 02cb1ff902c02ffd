#include "base/log_level.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <utility>

namespace ckpt {

namespace {

constexpr std::array levels =
    std::to_array<std::pair<std::string_view, LogLevel>>({{"debug", LogLevel::debug},
                                                          {"info", LogLevel::info},
                                                          {"warning", LogLevel::warning},
                                                          {"error", LogLevel::error}});

std::string_view chosen_level() {
  const char* const text = std::getenv(log_level_variable);
  return text != nullptr ? text : "";
}

[[maybe_unused]] const bool is_level_set = [] {
  if (const auto level = log_level_named(chosen_level())) Log::set_level(*level);
  return true;
}();

}  // namespace

std::optional<LogLevel> log_level_named(std::string_view name) {
  const auto found = std::ranges::find(levels, name, &std::pair<std::string_view, LogLevel>::first);
  if (found == levels.end()) return std::nullopt;
  return found->second;
}

void warn_of_unknown_log_level() {
  static std::atomic<bool> was_logged{false};
  const std::string_view chosen = chosen_level();
  if (chosen.empty() || log_level_named(chosen) || was_logged.exchange(true)) return;
  log_warning(
      "environment {} = \"{}\": there is no such level; it is debug, info, warning or error, and "
      "info counts",
      log_level_variable, chosen);
}

}  // namespace ckpt
