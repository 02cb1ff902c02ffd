// Retry: which failures are worth another try, and how long to wait before it.
#pragma once

#include <ckpt/result.hpp>

#include "base/clock.hpp"
#include "base/random.hpp"
#include "bucket/answers.hpp"

namespace ckpt::bucket {

// The pauses below add up to some ten seconds. Longer trouble is the caller's, whose own retries
// (the next flush, the next catalog) have longer pauses.
inline constexpr int tries_max = 8;

// A try in which nothing moves takes up to 20 s (curl_transport.cpp), so that a server that accepts
// and never answers is given up within about a minute. Transfers that move, however slowly, go on.
inline constexpr int stalls_max = 3;

enum class Reaction : std::uint8_t {
  give_up,
  try_again,
  renew_keys,  // They have expired or were replaced; try again with others.
  set_clock,   // Ours differs too much from the server's; try again with its time.
};
// `error` is that of an answer which is not good.
Reaction reaction_to(int status, const ServerError& error);
Reaction reaction_to(const Error& error);  // For errors of the transport.

// Full jitter: anything up to a bound that doubles with each try, so that the nodes of a job do not
// come back together. `failures` counts from 1.
Duration pause_after(int failures, Random& random);

}  // namespace ckpt::bucket
