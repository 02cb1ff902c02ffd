#include "format/member_name.hpp"

#include <fmt/format.h>

#include "format/frame_table.hpp"

namespace ckpt::format {

namespace {

constexpr std::size_t rank_digits_min = 5;
constexpr std::size_t rank_digits_max = 10;
constexpr std::size_t extension_bytes_max = 16;

bool is_plain_name_of_rank(std::string_view name, std::optional<std::uint32_t> rank) {
  constexpr std::string_view prefix = "rank-";
  if (!name.starts_with(prefix)) return false;
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) return false;
  const auto digits = name.substr(prefix.size(), dot - prefix.size());
  const auto extension = name.substr(dot + 1);
  if (digits.size() < rank_digits_min || digits.size() > rank_digits_max) return false;
  if (extension.empty() || extension.size() > extension_bytes_max) return false;
  std::uint64_t value = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return false;
    value = value * 10 + static_cast<std::uint64_t>(digit - '0');
  }
  for (const char letter : extension)
    if (letter < 'a' || letter > 'z') return false;
  if (value > UINT32_MAX || (rank && value != *rank)) return false;
  // Only one spelling is valid: without superfluous zeros.
  return name == member_name(static_cast<std::uint32_t>(value), extension);
}

}  // namespace

std::string member_name(std::uint32_t rank, std::string_view extension) {
  return fmt::format("rank-{:05}.{}", rank, extension);
}

bool is_member_name(std::string_view name, std::optional<std::uint32_t> rank) {
  return is_plain_name_of_rank(name, rank) && !name.ends_with(".part");
}

bool is_name_of_rank(std::string_view name, std::optional<std::uint32_t> rank) {
  const auto plain = plain_name(name);
  return plain ? is_member_name(*plain, rank) : is_plain_name_of_rank(name, rank);
}

}  // namespace ckpt::format
