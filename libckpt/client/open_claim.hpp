// OpenClaim: that this process has one rank of a job open; a second one would take its place.
//
// Threads:   any. Lifetime: a fork's copy claims nothing, and lets nothing go.
#pragma once

#include <sys/types.h>

#include <ckpt/result.hpp>
#include <cstdint>
#include <string_view>

namespace ckpt::client {

class OpenClaim {
 public:
  // `engine`: whose sessions they are; what another one has open is none of ours.
  // Errors: invalid_argument (this process has it open already).
  static Result<OpenClaim> take(std::string_view engine, std::string_view job, std::uint32_t rank);
  OpenClaim(OpenClaim&& other) noexcept;
  OpenClaim& operator=(OpenClaim&&) = delete;
  ~OpenClaim();

 private:
  struct Place;
  OpenClaim(Place& place, pid_t process) : place_(&place), process_(process) {}

  Place* place_;   // None: moved from.
  pid_t process_;  // That took it.
};

}  // namespace ckpt::client
