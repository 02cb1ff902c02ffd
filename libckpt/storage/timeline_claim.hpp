// TimelineClaim: a file that one Start alone can make, before anybody trains on its timeline.
//
// Two daemons that know nothing of each other read the same history and choose the same number for
// the timeline that they begin; whose claim comes second takes another. A claim is needed no longer
// once the history names its timeline, or a later one.
#pragma once

#include <cstdint>

#include "storage/site.hpp"

namespace ckpt::storage {

struct Claim {
  std::uint64_t timeline = 0;
  std::uint64_t start_id = 0;
  std::uint64_t attempt = 0;  // Random: for the name of the file that is written aside.
};

enum class Claimed : std::uint8_t {
  now,     // Nobody else can.
  before,  // By the same Start: another node that coordinated it.
  taken,   // By another Start, or by one that cannot be read.
};

Task<Claimed> claim_timeline(Site site, Claim claim);

// Of timelines below it.
Task<void> discard_claims(Site site, std::uint64_t timeline);

}  // namespace ckpt::storage
