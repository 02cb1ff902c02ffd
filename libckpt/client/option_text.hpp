// OptionText: the values of options as people write them, and back.
#pragma once

#include <chrono>
#include <ckpt/options.hpp>
#include <ckpt/result.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::client {

std::string_view trim(std::string_view text);

// Errors of all: invalid_argument (the text names the expected form).
Result<std::uint64_t> parse_count(std::string_view text, std::uint64_t most);
Result<std::uint64_t> parse_bytes(std::string_view text);  // "1048576", "64 GiB", "64G".
Result<bool> parse_bool(std::string_view text);            // 1/0, true/false, yes/no, on/off.
Result<std::chrono::milliseconds> parse_duration(std::string_view text);  // "250ms", "15min".
// "1000 until 10000, 5000".
Result<std::vector<KeepInterval>> parse_keep_intervals(std::string_view text);
Result<std::vector<Node>> parse_nodes(std::string_view text);  // Commas between them.

std::string show_bytes(std::uint64_t bytes);
std::string show_duration(std::chrono::milliseconds duration);
std::string show_interval(const Interval& interval);
std::string show_keep_intervals(const std::vector<KeepInterval>& intervals);
std::string show_nodes(const std::vector<Node>& nodes);

}  // namespace ckpt::client
