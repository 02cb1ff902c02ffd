// ReadyFile: who the daemon of a runtime directory is: for people, scripts and `ckpt status`.
//
//   {"pid": 4711, "start_ticks": 81234, "version": "0.1.0", "socket": "/run/.../ckptd.sock"}
//
// It is there when the socket is, and goes with the daemon; after a crash it names a process that
// is gone. The lock beside it, and not this file, says whether a daemon runs.
#pragma once

#include <ckpt/result.hpp>
#include <string>
#include <string_view>

#include "os/process.hpp"

namespace ckpt::daemon {

struct Ready {
  os::ProcessIdentity process;
  std::string version;
  std::string socket;
  bool operator==(const Ready&) const = default;
};

std::string to_json(const Ready& ready);
// Errors: corruption.
Result<Ready> parse_ready(std::string_view json);

}  // namespace ckpt::daemon
