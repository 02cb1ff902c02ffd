#include "cli/disk_only.hpp"

#include <fmt/format.h>

#include "bucket/place.hpp"

namespace ckpt::cli {

Status check_on_disk(std::string_view what, std::string_view path) {
  if (!bucket::is_bucket_path(path)) return {};
  return fail(
      Errc::unsupported,
      fmt::format("{} {}: this command works with directories, and with no bucket; `ckpt "
                  "ls`, `verify`, `inspect`, `export`, `diff` and `cp` take buckets, and a job "
                  "keeps as many checkpoints there as its options say",
                  what, path));
}

}  // namespace ckpt::cli
