// Spawn: starts a program that shares nothing with us: no session, no descriptors, no terminal.
//
// An inherited pipe would hang whoever captures our output, for as long as the daemon lives.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "os/fd.hpp"

namespace ckpt::os {

struct SpawnOptions {
  std::string program;                 // A path, or a name that is looked up in PATH.
  std::vector<std::string> arguments;  // Without the program's own name.
  // Set, or with nullopt removed, in the copy of our environment that it gets.
  std::vector<std::pair<std::string, std::optional<std::string>>> environment;
  std::string log_path;  // Its standard output and error are appended here; created as 0600.
};

// It is our child, until we end: whoever sees it end calls reap() (os/process.hpp).
struct Spawned {
  Fd process;  // Its pidfd.
  pid_t pid = 0;
};

// Signals are unblocked and have their default actions; standard input is empty.
// Errors: not_found (the program), io (the log file, or the kernel), exhausted.
Result<Spawned> spawn_detached(const SpawnOptions& options);

}  // namespace ckpt::os
