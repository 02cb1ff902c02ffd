// Credentials: finds keys where the AWS tools look for them, and finds them again when they expire.
//
//   environment -> web identity -> profile files -> container's service -> instance's service
//
// Threads: CredentialSource from several at once; finding blocks.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "bucket/environment.hpp"
#include "bucket/request.hpp"
#include "bucket/settings.hpp"
#include "bucket/signature.hpp"

namespace ckpt::bucket {

using WallTime = std::chrono::system_clock::time_point;

struct Credentials {
  Keys keys;
  std::optional<WallTime> expires;
  std::string origin;  // "the environment", "profile p": for errors.
};

// Errors: not_found (lists where it looked), unavailable (a service did not answer), io (a service
// refused).
// For Google: only LIBCKPT_GS_ACCESS_KEY_ID and LIBCKPT_GS_SECRET_ACCESS_KEY. Errors: not_found.
Result<Credentials> find_google_credentials(const Environment& environment);

Result<Credentials> find_credentials(const Environment& environment, const std::string& region,
                                     Transport& transport);

class CredentialSource {
 public:
  CredentialSource(Environment environment, const Settings& settings, Transport& transport)
      : environment_(std::move(environment)),
        region_(settings.region),
        scheme_(settings.scheme),
        transport_(transport) {}

  // Those found before, unless they expire within minutes.
  Result<Credentials> at(WallTime now);
  // The server refused these: the next call looks again, unless somebody has already done so.
  void forget(const Credentials& refused);

 private:
  const Environment environment_;
  const std::string region_;
  const Scheme scheme_;
  Transport& transport_;
  std::mutex mutex_;
  std::optional<Credentials> known_;
};

}  // namespace ckpt::bucket
