#include "bucket/http_time.hpp"

#include <ctime>
#include <string>

namespace ckpt::bucket {

std::optional<std::chrono::system_clock::time_point> parse_http_time(std::string_view text) {
  constexpr std::string_view months = "JanFebMarAprMayJunJulAugSepOctNovDec";
  const std::string copy(text);
  std::tm parts{};
  char month[4] = {};
  if (std::sscanf(copy.c_str(), "%*3s, %2d %3s %4d %2d:%2d:%2d GMT", &parts.tm_mday, month,
                  &parts.tm_year, &parts.tm_hour, &parts.tm_min, &parts.tm_sec) != 6)
    return std::nullopt;
  const auto at = months.find(month);
  if (at == std::string_view::npos || at % 3 != 0) return std::nullopt;
  parts.tm_mon = static_cast<int>(at / 3);
  parts.tm_year -= 1900;
  return std::chrono::system_clock::from_time_t(::timegm(&parts));
}

std::optional<std::chrono::system_clock::time_point> parse_iso_time(std::string_view text) {
  std::tm parts{};
  const std::string copy(text);
  int read = 0;
  if (std::sscanf(copy.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d%n", &parts.tm_year, &parts.tm_mon,
                  &parts.tm_mday, &parts.tm_hour, &parts.tm_min, &parts.tm_sec, &read) != 6)
    return std::nullopt;
  if (!copy.ends_with('Z')) return std::nullopt;
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  return std::chrono::system_clock::from_time_t(::timegm(&parts));
}

}  // namespace ckpt::bucket
