// Signature: signs a request as AWS version 4 wants it.
//
// The query is sorted and encoded, the path is encoded once, and every x-amz header is covered.
// Bodies above a MiB are declared unsigned: hashing them costs more than sending them, and they
// carry a CRC-32 instead, which is signed.
#pragma once

#include <chrono>
#include <string>

#include "bucket/dialect.hpp"
#include "bucket/request.hpp"

namespace ckpt::bucket {

struct Keys {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // Empty: none.
};

struct SigningScope {
  std::string region;
  std::string service = "s3";  // "sts" with Amazon's dialect; Google's dialect has its own.
  Dialect dialect = amazon;
  std::chrono::system_clock::time_point time;
};

// Adds the headers x-amz-date, x-amz-content-sha256, x-amz-security-token (or x-goog-...) and
// authorization; the transport sends `host`, which is covered too.
void sign(Request& request, const Keys& keys, const SigningScope& scope);

std::string sha256_hex(std::string_view text);

}  // namespace ckpt::bucket
