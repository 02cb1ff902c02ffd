#include "storage/in_the_way.hpp"

#include <fmt/format.h>

namespace ckpt::storage {

std::string how_to_move_away(const Error& problem, const std::string& path, bool is_in_bucket) {
  if (problem.code() == Errc::version_mismatch) return {};
  if (!is_in_bucket) return fmt::format("move it away (mv {} ELSEWHERE)", path);
  // There is no `mv`, and each server has its own tools.
  return fmt::format("move all objects below {}/ away, with your bucket's own tool", path);
}

}  // namespace ckpt::storage
