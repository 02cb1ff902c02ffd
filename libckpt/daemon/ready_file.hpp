// ReadyFile: identifies the daemon of a runtime directory to people, scripts and `ckpt status`.
//
//   {"pid": 4711, "start_ticks": 81234, "version": "0.1.0", "socket": "/run/.../ckptd.sock",
//    "memory_budget": 68719476736}
//
// It exists while the socket does, and is removed when the daemon ends. After a crash it names a
// dead process. The lock beside it, and not this file, shows whether a daemon runs.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "os/process.hpp"

namespace ckpt::daemon {

struct Ready {
  os::ProcessIdentity process;
  std::string version;
  std::string socket;
  std::uint64_t memory_budget = 0;  // Bytes; 0: a daemon of an older version does not say.
  bool operator==(const Ready&) const = default;
};

std::string to_json(const Ready& ready);
// Errors: corruption.
Result<Ready> parse_ready(std::string_view json);

}  // namespace ckpt::daemon
