// OpenClaim: marks a rank of a job as open in this process; a second session would fence the first.
//
// Threads:   any. Lifetime: a fork's copy claims nothing and releases nothing.
#pragma once

#include <sys/types.h>

#include <ckpt/result.hpp>
#include <cstdint>
#include <string_view>

namespace ckpt::client {

class OpenClaim {
 public:
  // `engine` names the engine of the session. Claims at different engines are independent.
  // Errors: invalid_argument (this process has it open already).
  static Result<OpenClaim> take(std::string_view engine, std::string_view job, std::uint32_t rank);
  OpenClaim(OpenClaim&& other) noexcept;
  OpenClaim& operator=(OpenClaim&&) = delete;
  ~OpenClaim();

 private:
  struct Entry;
  OpenClaim(Entry& entry, pid_t process) : entry_(&entry), process_(process) {}

  Entry* entry_;   // None: moved from.
  pid_t process_;  // The claim's owner.
};

}  // namespace ckpt::client
