#include "cli/table.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"

namespace ckpt::cli {

namespace {

constexpr std::size_t fold_indent = 4;

// Counts characters and not bytes, since names may be UTF-8.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
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

std::string Table::lines(std::size_t indent, std::size_t first_column) const {
  std::vector<std::size_t> widths(alignment_.size());
  for (const auto& row : rows_) {
    for (std::size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], width_of(row[column]));
  }
  std::string out;
  for (const auto& row : rows_) {
    for (std::size_t column = 0; column < first_column; ++column)
      out += std::string(indent, ' ') + row[column] + "\n";
    std::string line(first_column > 0 ? indent + fold_indent : indent, ' ');
    for (std::size_t column = first_column; column < row.size(); ++column) {
      const std::string blanks(widths[column] - width_of(row[column]), ' ');
      if (column > first_column) line += "  ";
      line += alignment_[column] == 'r' ? blanks + row[column] : row[column] + blanks;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string Table::to_text(std::size_t indent, std::size_t width) const {
  const std::string whole = lines(indent, 0);
  if (width == 0) return whole;
  std::size_t longest = 0;
  for (std::size_t begin = 0; begin < whole.size();) {
    const std::size_t end = whole.find('\n', begin);
    longest = std::max(longest, width_of(whole.substr(begin, end - begin)));
    begin = end + 1;
  }
  return longest <= width ? whole : lines(indent, 1);
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
