#include "cli/same_place.hpp"

#include <filesystem>

#include "bucket/bucket_path.hpp"

namespace ckpt::cli {

bool is_same_place(const std::string& one, const std::string& other) {
  if (bucket::is_bucket_path(one) || bucket::is_bucket_path(other)) {
    const auto left = bucket::normal_path(one), right = bucket::normal_path(other);
    return left && right && *left == *right;
  }
  std::error_code error;
  return std::filesystem::equivalent(one, other, error) && !error;
}

}  // namespace ckpt::cli
