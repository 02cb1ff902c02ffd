// PlaceCheck: whether a place for checkpoints, or a checkpoint, is there, and whether there is
// room.
//
// A Site may be of a job's directory, or of one checkpoint that somebody has named.
#pragma once

#include <cstdint>
#include <string>

#include "os/file_system.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// Errors: not_found (nothing is there), io. With the cause ENOTDIR it is a file.
Task<void> check_there(Site site);

// Whether it is one checkpoint, as far as there is a manifest. Errors: io; with the cause ENOTDIR
// it is a file.
Task<bool> is_checkpoint(Site site);

// Writes a little there, and removes it. In a bucket, as prove_conditions. `attempt` is random.
// Errors: unsupported (the server ignores conditions), exhausted, io.
Task<void> prove_writable(Site site, std::uint64_t attempt);

// Errors: not_found, unsupported (a bucket), io.
Task<os::Space> room_in(Site site);

}  // namespace ckpt::storage
