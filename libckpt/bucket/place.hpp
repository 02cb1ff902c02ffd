// Place: where "s3://bucket/prefix" lies; paths with any other scheme are refused.
#pragma once

#include <ckpt/result.hpp>
#include <string>
#include <string_view>

namespace ckpt::bucket {

struct Place {
  std::string bucket;
  std::string key;  // No slash in front or behind; empty: the whole bucket.
  bool operator==(const Place&) const = default;
};

// Returns true for "s3://..." alone: other schemes are no bucket, and check_path refuses them.
bool is_bucket_path(std::string_view path);

// Errors: invalid_argument (no bucket path, a name that no bucket can have, ".." in it).
Result<Place> parse_place(std::string_view path);

// Accepts paths of files and of buckets. Errors: invalid_argument (names what to use instead).
Status check_path(std::string_view path);

// "s3://bucket/prefix" without repeated slashes, "." and a slash at the end. Errors: as
// parse_place.
Result<std::string> normal_path(std::string_view path);

}  // namespace ckpt::bucket
