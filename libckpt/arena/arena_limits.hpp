// ArenaLimits: how many Slots a job needs on a node, and whether it may have their memory.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <string>

namespace ckpt::arena {

// One holds the newest committed step, one takes the next.
inline constexpr std::uint32_t own_slots_min = 2;
// A flush that takes longer than the interval holds a third.
inline constexpr std::uint32_t own_slots_with_storage = 3;
// For each protected rank: the committed copy, and the one being received.
inline constexpr std::uint32_t replica_slots_per_rank = 2;

// MemoryBudget: the memory that the daemon may use for the Slots of all jobs together.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Takes the bytes. For an error, `what` needs them, and `used_by` has the others. Errors:
  // exhausted: "Slots of job gpt2 rank 3 need 212.0 GiB, may use 190.0 GiB, of which ...".
  Status reserve(std::uint64_t bytes, const std::string& what, const std::string& used_by = "");
  // Whether reserve would have its bytes once `given_back` bytes are released. Takes nothing.
  // Errors: as reserve.
  Status check(std::uint64_t bytes, const std::string& what, std::uint64_t given_back = 0,
               const std::string& used_by = "") const;
  void release(std::uint64_t bytes);
  std::uint64_t limit_bytes() const { return limit_bytes_; }
  std::uint64_t used_bytes() const { return used_bytes_; }

 private:
  std::uint64_t limit_bytes_;
  std::uint64_t used_bytes_ = 0;
};

std::string human_bytes(std::uint64_t bytes);  // "212.0 GiB"

}  // namespace ckpt::arena
