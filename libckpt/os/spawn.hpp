// Spawn: starts a program that shares no session, descriptors or terminal with us.
//
// An inherited pipe would hang a caller that captures our output for as long as the daemon lives.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "os/environment_copy.hpp"
#include "os/fd.hpp"

namespace ckpt::os {

struct SpawnOptions {
  std::string program;                 // A path, or a name for the PATH of `environment`.
  std::vector<std::string> arguments;  // Without the program's own name.
  EnvironmentCopy environment;         // The child's, all of it.
  std::string log_path;  // Its standard output and error are appended here; created as 0600.
};

// It stays our child until we end: call reap() (os/process.hpp) after it has ended.
struct Spawned {
  Fd process;  // Its pidfd.
  pid_t pid = 0;
};

// Signals are unblocked and have their default actions. Standard input is empty. It does not read
// the environment of the process, so any thread may call it.
// Errors: not_found (the program), io (the log file, or the kernel), exhausted.
Result<Spawned> spawn_detached(const SpawnOptions& options);

}  // namespace ckpt::os
