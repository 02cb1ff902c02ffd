// Repair: replaces what is damaged in a published checkpoint, from another copy of the same one.
//
//   verified -> each damaged file: Chunks read (own, else the other's), verified, written aside
//     -> put in the places of the damaged ones (replacement.hpp)
//
// No good file is touched, and no byte gets in that the manifest does not seal. Until all new files
// are whole, nothing changes. The manifest itself is not repaired.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "storage/member_writer.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

struct RepairOrder {
  std::uint64_t attempt = 0;           // Random: for the names of files that are written aside.
  std::function<bool()> is_cancelled;  // Asked between Chunks. Empty: never.
  TransferHooks hooks;                 // For reads: threads for checksums, bandwidth.
};

// StepIn: a checkpoint by its name in a site; "." is the site itself.
struct StepIn {
  Site site;
  std::string name;
};

// Returns the names of the files that were replaced; none: all was well. Errors: those of the
// manifest; invalid_argument (the source is another checkpoint); corruption (the source is damaged
// in the same places, or lacks them); unavailable (some file of it could not be read, which says
// nothing about its bytes); cancelled, exhausted, io: nothing has changed, except when
// files were put in their places: then some are repaired.
Task<std::vector<std::string>> repair_checkpoint(StepIn damaged, StepIn copy, RepairOrder order);

}  // namespace ckpt::storage
