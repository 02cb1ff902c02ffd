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

bool is_below(const std::string& inner, const std::string& outer) {
  if (bucket::is_bucket_path(inner) || bucket::is_bucket_path(outer)) {
    const auto left = bucket::normal_path(inner), right = bucket::normal_path(outer);
    return left && right && left->starts_with(*right + "/");
  }
  std::error_code error;
  std::filesystem::path whole = std::filesystem::absolute(inner, error);
  if (error) return false;
  whole = std::filesystem::weakly_canonical(whole, error);
  if (error) return false;
  // Names are not compared: a directory may be mounted twice.
  for (auto path = whole; path != path.parent_path(); path = path.parent_path())
    if (is_same_place(path.parent_path().string(), outer)) return true;
  return false;
}

}  // namespace ckpt::cli
