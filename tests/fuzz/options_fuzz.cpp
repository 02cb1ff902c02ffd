// Goal:   no text of a user makes an option something else, or ends the program.
// Method: the input is "name value" per line, as in the configuration file.
#include <ckpt/options.hpp>

#include "fuzz.hpp"

namespace ckpt::fuzz {

void fuzz_one(Bytes input) {
  std::string_view text = text_of(input);
  Options options;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == text.npos ? std::string_view() : text.substr(end + 1);
    const auto gap = line.find(' ');
    if (gap == line.npos) continue;
    const Status set = options.set(line.substr(0, gap), line.substr(gap + 1));
    promise(set || !set.error().message().empty(), "an error says what was wrong");
  }
}

}  // namespace ckpt::fuzz
