// Dialect: the words in which Amazon's S3 and Google's XML interface differ.
//
// Google's takes the same requests with the same answers. Its own headers and its own form of the
// signature are used, because it ignores S3's conditions of writes.
#pragma once

#include <string_view>

namespace ckpt::bucket {

struct Dialect {
  std::string_view scheme;     // As paths have it.
  std::string_view algorithm;  // For signatures. The next three are parts of what is signed.
  std::string_view key_prefix;
  std::string_view scope_end;
  std::string_view service;
  std::string_view date_header;
  std::string_view body_hash_header;
  std::string_view token_header;
  std::string_view checksum_header;
  std::string_view tag_header;           // In answers: the tag that conditions name.
  std::string_view if_unchanged_header;  // For writes, and for reads of one version.
  std::string_view if_absent_header;     // For writes,
  std::string_view absent_tag;           // with this value.
  bool has_crc32 = false;                // Else the checksum is CRC-32C, with its name before it.
};

inline constexpr Dialect amazon{
    .scheme = "s3://",
    .algorithm = "AWS4-HMAC-SHA256",
    .key_prefix = "AWS4",
    .scope_end = "aws4_request",
    .service = "s3",
    .date_header = "x-amz-date",
    .body_hash_header = "x-amz-content-sha256",
    .token_header = "x-amz-security-token",
    .checksum_header = "x-amz-checksum-crc32",
    .tag_header = "etag",
    .if_unchanged_header = "if-match",
    .if_absent_header = "if-none-match",
    .absent_tag = "*",
    .has_crc32 = true,
};
// An object's generation changes with every write, and never comes back; 0 means that it is absent.
inline constexpr Dialect google{
    .scheme = "gs://",
    .algorithm = "GOOG4-HMAC-SHA256",
    .key_prefix = "GOOG4",
    .scope_end = "goog4_request",
    .service = "storage",
    .date_header = "x-goog-date",
    .body_hash_header = "x-goog-content-sha256",
    .token_header = "x-goog-security-token",
    .checksum_header = "x-goog-hash",
    .tag_header = "x-goog-generation",
    .if_unchanged_header = "x-goog-if-generation-match",
    .if_absent_header = "x-goog-if-generation-match",
    .absent_tag = "0",
    .has_crc32 = false,
};

}  // namespace ckpt::bucket
