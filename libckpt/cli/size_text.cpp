#include "cli/size_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/units.hpp"

namespace ckpt::cli {

namespace {

constexpr std::uint64_t thousand = 1000;
constexpr std::array<std::pair<std::string_view, std::uint64_t>, 10> units = {{
    {"", 1},
    {"B", 1},
    {"KB", thousand},
    {"MB", thousand* thousand},
    {"GB", thousand* thousand* thousand},
    {"TB", thousand* thousand* thousand* thousand},
    {"KiB", KiB},
    {"MiB", MiB},
    {"GiB", GiB},
    {"TiB", TiB},
}};

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const auto found =
      std::ranges::find(units, unit, &std::pair<std::string_view, std::uint64_t>::first);
  if (error != std::errc() || found == units.end() || value > UINT64_MAX / 2 / found->second)
    return fail(Errc::invalid_argument,
                fmt::format("\"{}\" is no size: give one such as 5GB, 500MB or 2GiB", text));
  return value * found->second;
}

}  // namespace ckpt::cli
