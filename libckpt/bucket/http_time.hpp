// HttpTime: the dates in answers, and in their headers.
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace ckpt::bucket {

// "Thu, 26 Nov 2026 06:37:10 GMT", the one form that servers may write. None: it is something else.
std::optional<std::chrono::system_clock::time_point> parse_http_time(std::string_view text);

// "2026-11-26T06:37:10Z", with or without a fraction. None: it is something else.
std::optional<std::chrono::system_clock::time_point> parse_iso_time(std::string_view text);

}  // namespace ckpt::bucket
