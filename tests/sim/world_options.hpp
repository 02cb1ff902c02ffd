// WorldOptions: the form of a simulated World, and the Outcome: how it went.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::sim {

struct WorldOptions {
  std::uint64_t seed = 1;
  bool is_verbose = false;
  bool trainers_retract = false;  // They ask for restores in mid-training and give them up.
  bool is_elastic = false;      // Each launch has another number of ranks, and there is no storage.
  bool is_stored = false;       // An elastic world has storage all the same.
  bool is_frozen = false;       // Most bytes stay the same for some steps, and are not sent again.
  bool has_copies = false;      // All ranks hold one tensor, and divide its capture.
  bool has_pauses = false;      // Nodes stand still for seconds and go on, and no link is cut.
  bool has_slow_slots = false;  // On some machines every Slot takes its time, those for copies too.
};

struct Outcome {
  std::vector<std::string> violations;  // Empty: all laws held.
  std::uint64_t launches = 0;
  std::uint64_t restores = 0;        // Groups that began from a step.
  std::uint64_t mixed_restores = 0;  // Of ranks: from memory and from storage.
  std::uint64_t commits = 0;
  std::uint64_t kills = 0;
  std::uint64_t captures = 0;
  std::uint64_t publications = 0;
  std::uint64_t bytes_unchanged = 0;  // Not sent again, by the daemons that live at the end.
};

}  // namespace ckpt::sim
