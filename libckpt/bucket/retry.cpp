#include "bucket/retry.hpp"

#include <algorithm>

namespace ckpt::bucket {

namespace {

// The first pause is below a fifth of a second, and none is above 10 s.
constexpr Duration first_pause_max = std::chrono::milliseconds(200);
constexpr Duration pause_max = std::chrono::seconds(10);

}  // namespace

Reaction reaction_to(int status, const ServerError& error) {
  if (error.code == "RequestTimeTooSkewed") return Reaction::set_clock;
  if (error.code == "ExpiredToken" || error.code == "ExpiredTokenException" ||
      error.code == "TokenRefreshRequired" || error.code == "InvalidToken" ||
      error.code == "InvalidAccessKeyId")
    return Reaction::renew_keys;
  // A conditional write that met another one: it may win the next time, or learn that it lost.
  const bool is_conflict = status == 409 && error.code == "ConditionalRequestConflict";
  const bool is_slow = error.code == "SlowDown" || error.code == "RequestTimeout" ||
                       error.code == "InternalError" || error.code == "BadDigest" ||
                       error.code == "OperationAborted";
  const bool is_passing = status == 408 || status == 429 || status == 500 || status == 502 ||
                          status == 503 || status == 504;
  return is_conflict || is_slow || is_passing ? Reaction::try_again : Reaction::give_up;
}

Reaction reaction_to(const Error& error) {
  return error.code() == Errc::unavailable ? Reaction::try_again : Reaction::give_up;
}

Duration pause_after(int failures, Random& random) {
  const int doublings = std::clamp(failures - 1, 0, 16);
  const Duration bound = std::min(pause_max, first_pause_max * (1 << doublings));
  return Duration(static_cast<Duration::rep>(static_cast<double>(bound.count()) * random.unit()));
}

}  // namespace ckpt::bucket
