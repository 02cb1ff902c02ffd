// SizeText: sizes as people write them for files.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <string_view>

namespace ckpt::cli {

// "5GB" is 5 000 000 000, as Hugging Face has it; "5GiB", "500MB", "4096". Errors:
// invalid_argument.
Result<std::uint64_t> parse_size(std::string_view text);

}  // namespace ckpt::cli
