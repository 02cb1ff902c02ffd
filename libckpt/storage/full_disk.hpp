// FullDisk: whether an error says that the disk, or a user's share of it, has no room.
#pragma once

#include <cerrno>
#include <ckpt/error.hpp>
#include <system_error>

namespace ckpt::storage {

inline bool is_disk_full(const Error& error) {
  const std::error_code cause = error.cause();
  return cause == std::errc::no_space_on_device ||
         cause == std::error_code(EDQUOT, std::generic_category());  // Which std::errc lacks.
}

}  // namespace ckpt::storage
