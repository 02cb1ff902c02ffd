#include "base/byte_text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "base/units.hpp"

namespace ckpt {

namespace {

constexpr std::uint64_t KB = 1000;
constexpr std::uint64_t MB = 1000 * KB;
constexpr std::uint64_t GB = 1000 * MB;
constexpr std::uint64_t TB = 1000 * GB;

struct ByteUnit {
  std::string_view name;
  std::uint64_t bytes;
};
// The first one that divides a size is shown.
constexpr std::array byte_units = std::to_array<ByteUnit>({{"TiB", TiB},
                                                           {"GiB", GiB},
                                                           {"MiB", MiB},
                                                           {"KiB", KiB},
                                                           {"TB", TB},
                                                           {"GB", GB},
                                                           {"MB", MB},
                                                           {"KB", KB},
                                                           {"B", 1},
                                                           {"T", TiB},
                                                           {"G", GiB},
                                                           {"M", MiB},
                                                           {"K", KiB},
                                                           {"", 1}});

}  // namespace

std::optional<std::uint64_t> parse_byte_text(std::string_view text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc()) return std::nullopt;
  std::string_view name(rest, static_cast<std::size_t>(end - rest));
  name.remove_prefix(std::min(name.find_first_not_of(' '), name.size()));
  const auto unit = std::ranges::find(byte_units, name, &ByteUnit::name);
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  if (unit == byte_units.end() || value > most / unit->bytes) return std::nullopt;
  return value * unit->bytes;
}

std::string show_byte_text(std::uint64_t bytes) {
  if (bytes == 0) return "0";
  const auto unit = std::ranges::find_if(
      byte_units, [bytes](const ByteUnit& each) { return bytes % each.bytes == 0; });
  return std::to_string(bytes / unit->bytes) + std::string(unit->name);
}

}  // namespace ckpt
