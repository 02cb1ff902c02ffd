// BucketPath: where "s3://bucket/prefix" or "gs://bucket/prefix" lies; other schemes are refused.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "bucket/dialect.hpp"

namespace ckpt::bucket {

enum class Scheme : std::uint8_t { s3, gs };
const Dialect& dialect_of(Scheme scheme);

struct BucketPath {
  std::string bucket;
  std::string key;  // No slash in front or behind; empty: the whole bucket.
  Scheme scheme = Scheme::s3;
  bool operator==(const BucketPath&) const = default;
};

// Returns true for "s3://..." and "gs://..." alone: check_path refuses other schemes.
bool is_bucket_path(std::string_view path);

std::string to_text(const BucketPath& place);  // "s3://bucket/key"
// "key/", which begins every key below it; or nothing.
std::string prefix_of(const BucketPath& place);

// Errors: invalid_argument (no bucket path, a name that no bucket can have, ".." in it).
Result<BucketPath> parse_bucket_path(std::string_view path);

// Accepts paths of files and of buckets. Errors: invalid_argument (names what to use instead).
Status check_path(std::string_view path);

// "s3://bucket/prefix" without repeated slashes, "." and a slash at the end. Errors: as
// parse_bucket_path.
Result<std::string> normal_path(std::string_view path);

}  // namespace ckpt::bucket
