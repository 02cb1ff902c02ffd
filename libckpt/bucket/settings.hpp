// Settings: which server has the buckets, and how it is reached; read once from the environment.
#pragma once

#include <optional>
#include <string>

#include "bucket/bucket_path.hpp"
#include "bucket/environment.hpp"
#include "bucket/proxies.hpp"
#include "bucket/request.hpp"

namespace ckpt::bucket {

struct Settings {
  Scheme scheme = Scheme::s3;
  std::string region = "us-east-1";
  std::optional<Origin> endpoint;  // None: Amazon's own, of the region.
  bool is_path_style = false;      // "host/bucket/key" rather than "bucket.host/key".
  std::string ca_file;             // Empty: the system's.
  Proxies proxies;
  // For errors: where the endpoint is from, or without one the region, and what changes it.
  std::string source;

  // The order is that of the AWS tools: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION,
  // AWS_DEFAULT_REGION, AWS_CA_BUNDLE, then the profile. LIBCKPT_S3_ADDRESSING is ours: `path` or
  // `virtual`. For Google, LIBCKPT_GS_ENDPOINT and AWS_CA_BUNDLE alone. Errors: invalid_argument.
  static Result<Settings> read(const Environment& environment, Scheme scheme = Scheme::s3);

  // The server of a bucket, with what goes before every key.
  Origin origin_of(const std::string& bucket) const;
  // For errors and logs: "http://127.0.0.1:9000", "Amazon S3 in eu-west-1".
  std::string describe() const;
};

}  // namespace ckpt::bucket
