// Table: columns of text, aligned; the first row is its head.
#pragma once

#include <string>
#include <vector>

namespace ckpt::cli {

class Table {
 public:
  // `alignment`: one letter for each column, l or r.
  Table(std::string alignment, std::vector<std::string> head);
  void add(std::vector<std::string> row);
  bool is_empty() const { return rows_.size() == 1; }
  // Every line begins with `indent` blanks; none ends with a blank. A column without a cell is left
  // out. If a line had more than `width` characters, the first cell of each row gets a line of its
  // own, and the others follow below it in as many lines as they need. 0: no limit.
  std::string to_text(std::size_t indent, std::size_t width = 0) const;

 private:
  std::vector<std::size_t> widths() const;

  std::string alignment_;
  std::vector<std::vector<std::string>> rows_;
};

// Texts in the form that people like to read.
std::string counted(const std::string& count,
                    const char* noun);               // "1 rank", "2 ranks", "no ranks".
std::string human_seconds(std::uint64_t seconds);    // "3 h 5 min".
std::string human_date(std::uint64_t unix_seconds);  // UTC, "2026-01-31 08:15:00".
// Makes a foreign text fit for a terminal: control characters become '?'.
std::string printable(std::string text);

}  // namespace ckpt::cli
