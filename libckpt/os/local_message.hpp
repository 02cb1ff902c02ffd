// LocalMessage: what two processes of one user on one machine send to each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "os/fd.hpp"

namespace ckpt::os {

inline constexpr std::size_t local_body_bytes_max = 64 * MiB;
inline constexpr std::size_t local_descriptors_max = 253;  // The kernel's SCM_MAX_FD.

// Not an aggregate on purpose: see base/task.hpp.
class LocalMessage {
 public:
  LocalMessage() = default;
  explicit LocalMessage(std::uint16_t the_kind, std::vector<std::byte> the_body = {})
      : kind(the_kind), body(std::move(the_body)) {}

  std::uint16_t kind = 0;
  std::vector<std::byte> body;
  std::vector<Fd> descriptors;
};

}  // namespace ckpt::os
