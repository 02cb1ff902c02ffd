// DiskOnly: refuses a bucket where a command works with directories.
#pragma once

#include <ckpt/result.hpp>
#include <string_view>

namespace ckpt::cli {

// `what` is what was asked: "copy". Errors: unsupported (the path is in a bucket).
Status check_on_disk(std::string_view what, std::string_view path);

}  // namespace ckpt::cli
