// TimelineClaim: a file that only one Start can create, before anybody trains on its timeline.
//
// Two daemons that do not know each other read the same history and choose the same number for a
// new timeline. The daemon whose claim comes second takes another number. A claim is obsolete once
// the history names its timeline or a later one.
#pragma once

#include <cstdint>

#include "storage/site.hpp"

namespace ckpt::storage {

struct Claim {
  std::uint64_t timeline = 0;
  std::uint64_t start_id = 0;
  std::uint64_t attempt = 0;  // Random: for the name of the temporary file.
};

enum class Claimed : std::uint8_t {
  now,     // We have it now, and nobody else can.
  before,  // By the same Start, through another coordinator.
  taken,   // By another Start, or by an unreadable one.
};

Task<Claimed> claim_timeline(Site site, Claim claim);

// Discards the claims of timelines that are lower than `timeline`.
Task<void> discard_claims(Site site, std::uint64_t timeline);

}  // namespace ckpt::storage
