#include "cli/size_text.hpp"

#include <fmt/format.h>

#include "base/byte_text.hpp"

namespace ckpt::cli {

Result<std::uint64_t> parse_size(std::string_view text) {
  if (const auto bytes = parse_byte_text(text)) return *bytes;
  return fail(Errc::invalid_argument,
              fmt::format("\"{}\" is no size: give one such as 5GB, 500MB or 2GiB", text));
}

}  // namespace ckpt::cli
