#include "cli/table.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/assert.hpp"
#include "cli/fold.hpp"

namespace ckpt::cli {

namespace {

constexpr std::size_t fold_indent = 4;

constexpr std::string_view gap = "  ";
using Line = std::vector<std::size_t>;  // Its columns.

// How each row is divided into lines. Columns without a width are left out.
std::vector<Line> lines_of(const std::vector<std::size_t>& widths, std::size_t indent,
                           std::size_t width) {
  std::size_t whole = indent;
  for (const std::size_t each : widths) whole += each == 0 ? 0 : each + gap.size();
  const bool is_folded = width > 0 && whole > width + gap.size();
  std::vector<Line> lines(1);
  std::size_t taken = 0;
  for (std::size_t column = 0; column < widths.size(); ++column) {
    if (widths[column] == 0 && column > 0) continue;
    const std::size_t more = gap.size() + widths[column];
    const bool is_full = lines.size() == 1 ? column > 0 : taken + more > width;
    if (is_folded && is_full) {
      lines.emplace_back();
      taken = indent + fold_indent;
    }
    taken += lines.back().empty() ? widths[column] : more;
    lines.back().push_back(column);
  }
  return lines;
}

}  // namespace

Table::Table(std::string alignment, std::vector<std::string> head)
    : alignment_(std::move(alignment)) {
  add(std::move(head));
}

void Table::add(std::vector<std::string> row) {
  CKPT_ASSERT(row.size() == alignment_.size());
  for (std::string& cell : row) cell = printable(std::move(cell));
  rows_.push_back(std::move(row));
}

std::vector<std::size_t> Table::widths() const {
  std::vector<std::size_t> widths(alignment_.size());
  for (std::size_t column = 0; column < widths.size(); ++column) {
    bool is_used = column == 0 || is_empty();
    for (const auto& row : rows_) {
      widths[column] = std::max(widths[column], width_of(row[column]));
      is_used |= &row != &rows_.front() && !row[column].empty();
    }
    if (!is_used) widths[column] = 0;
  }
  return widths;
}

std::string Table::to_text(std::size_t indent, std::size_t width) const {
  const std::vector<std::size_t> widths = this->widths();
  const std::vector<Line> lines = lines_of(widths, indent, width);
  std::string out;
  for (const auto& row : rows_) {
    for (const Line& columns : lines) {
      const bool is_first = &columns == &lines.front();
      std::string line(is_first ? indent : indent + fold_indent, ' ');
      for (const std::size_t column : columns) {
        const std::string blanks(widths[column] - std::min(widths[column], width_of(row[column])),
                                 ' ');
        if (column != columns.front()) line += gap;
        line += alignment_[column] == 'r' ? blanks + row[column] : row[column] + blanks;
      }
      line.erase(line.find_last_not_of(' ') + 1);
      if (!line.empty() || is_first) out += line + "\n";
    }
  }
  return out;
}

std::string counted(const std::string& count, const char* noun) {
  const char* shown = count == "0" ? "no" : count.c_str();
  return fmt::format("{} {}{}", shown, noun, count == "1" ? "" : "s");
}

std::string human_seconds(std::uint64_t seconds) {
  if (seconds < 60) return fmt::format("{} s", seconds);
  if (seconds < 3600) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
  if (seconds < 86'400) return fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60);
  return fmt::format("{} days {} h", seconds / 86'400, seconds / 3600 % 24);
}

std::string human_date(std::uint64_t unix_seconds) {
  constexpr std::uint64_t last = 253'402'300'799;  // The end of the year 9999.
  if (unix_seconds == 0 || unix_seconds > last) return "-";
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(static_cast<std::time_t>(unix_seconds)));
}

std::string printable(std::string text) {
  for (char& letter : text) {
    if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F) letter = '?';
  }
  return text;
}

}  // namespace ckpt::cli
