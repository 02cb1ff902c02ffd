#include "cli/fold.hpp"

#include <algorithm>

namespace ckpt::cli {

namespace {

// Where the lines that continue this one begin.
std::size_t hanging_of(std::string_view line, std::size_t width) {
  const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
  const std::size_t half = std::min(line.size(), width / 2);
  std::size_t column = indent == 0 ? 0 : indent + 2;
  for (std::size_t at = indent; at + 2 < half; ++at)
    if (line[at] == ' ' && line[at + 1] == ' ' && line[at + 2] != ' ') column = at + 2;
  return std::min(column, width / 2);
}

void add_folded(std::string& out, std::string_view line, std::size_t width) {
  if (width_of(line) <= width) {
    out.append(line);
    return;
  }
  const std::string hanging(hanging_of(line, width), ' ');
  std::string current;
  bool is_empty = true;  // It has no words.
  std::size_t at = 0;
  while (at < line.size()) {
    // A word, with the blanks in front of it.
    const std::size_t begin = std::min(line.find_first_not_of(' ', at), line.size());
    const std::size_t end = std::min(line.find(' ', begin), line.size());
    const std::string_view word = line.substr(begin, end - begin);
    const std::string_view blanks = line.substr(at, begin - at);
    at = end;
    if (word.empty()) break;
    if (!is_empty && width_of(current) + blanks.size() + width_of(word) > width) {
      out += current + "\n";
      current = hanging;
    } else {
      current += blanks;
    }
    current += word;
    is_empty = false;
  }
  out += current;
}

std::string_view next_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

}  // namespace

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char byte) { return (byte & 0xC0) != 0x80; }));
}

std::string folded(std::string_view text, std::size_t width) {
  if (width == 0) return std::string(text);
  std::string out;
  while (!text.empty()) {
    const bool is_ended = text.find('\n') != std::string_view::npos;
    add_folded(out, next_line(text), width);
    if (is_ended) out += '\n';
  }
  return out;
}

std::string folded_help(std::string_view text) {
  std::string joined;
  bool goes_on = false;  // The line before may be continued.
  while (!text.empty()) {
    const std::string_view line = next_line(text);
    const bool is_prose = !line.empty() && line.front() != ' ';
    if (line.starts_with("Usage:")) goes_on = false;
    if (!joined.empty()) joined += goes_on && is_prose ? ' ' : '\n';
    joined += line;
    goes_on = is_prose;
  }
  return folded(joined + "\n", help_columns);
}

}  // namespace ckpt::cli
