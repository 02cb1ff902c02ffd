// Fold: breaks long lines between words, for terminals.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ckpt::cli {

// Help texts are this wide at most.
inline constexpr std::size_t help_columns = 80;

// Counts characters and not bytes, since names may be UTF-8.
std::size_t width_of(std::string_view text);

// Lines longer than `width` characters go on in further lines, below the beginning of their last
// column, as two blanks divide columns. A longer word stays whole. 0: no limit.
std::string folded(std::string_view text, std::size_t width);

// The same for a help text. Lines that begin without a blank and follow one another are one
// paragraph, whose lines are divided anew.
std::string folded_help(std::string_view text);

}  // namespace ckpt::cli
