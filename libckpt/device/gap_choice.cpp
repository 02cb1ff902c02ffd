#include "device/gap_choice.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/assert.hpp"

namespace ckpt::device {

namespace {

// A fifth between the short batches of a measurement: a twentieth or less between those of a
// capture.
constexpr std::int64_t slower_allowed = 5;
// Two figures of a shared machine that differ by less are the same.
constexpr std::int64_t shorter_needed = 10;  // A tenth.

constexpr std::size_t lines_max = 16;  // Kinds of GPUs that share one directory.

constexpr std::array<std::pair<GpuGap, std::string_view>, 4> names = {{
    {GpuGap::none, "none"},
    {GpuGap::memset, "memset"},
    {GpuGap::write_value, "write_value"},
    {GpuGap::copy, "copy"},
}};

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

bool is_of(std::string_view line, std::string_view key) {
  return line.size() > key.size() && line.starts_with(key) && line[key.size()] == '\t';
}

}  // namespace

GpuGap choose_gap(std::span<const GapFigures> measured) {
  CKPT_ASSERT(!measured.empty());
  const auto fastest = std::ranges::min_element(measured, {}, &GapFigures::copies)->copies;
  const GapFigures* best = nullptr;
  for (const GapFigures& figures : measured) {
    if (figures.copies > fastest + fastest / slower_allowed) continue;
    if (best == nullptr || figures.wait < best->wait - best->wait / shorter_needed) best = &figures;
  }
  CKPT_ASSERT(best != nullptr);
  return best->gap;
}

std::string_view name_of(GpuGap gap) {
  for (const auto& [known, name] : names)
    if (known == gap) return name;
  return "auto";
}

std::optional<GpuGap> cached_gap(std::string_view cache, std::string_view key) {
  for (const std::string_view line : lines_of(cache)) {
    if (!is_of(line, key)) continue;
    for (const auto& [gap, name] : names)
      if (line.substr(key.size() + 1) == name) return gap;
  }
  return std::nullopt;
}

std::string with_gap(std::string_view cache, std::string_view key, GpuGap gap) {
  std::vector<std::string_view> lines = lines_of(cache);
  std::erase_if(lines, [&](std::string_view line) { return is_of(line, key); });
  if (lines.size() >= lines_max) lines.erase(lines.begin(), lines.end() - (lines_max - 1));
  std::string text;
  for (const std::string_view line : lines) text += std::string(line) + "\n";
  return text + std::string(key) + "\t" + std::string(name_of(gap)) + "\n";
}

}  // namespace ckpt::device
