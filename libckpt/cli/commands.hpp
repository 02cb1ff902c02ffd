// Commands: each a function from its arguments to an Outcome; one .cpp for each.
//
// Errors of all: what was attempted on what, and what to do about it. invalid_argument is wrong use
// of the command line, everything else is trouble.
#pragma once

#include <chrono>
#include <string>

#include "cli/command.hpp"

namespace ckpt::cli {

// Speak to the daemon of a runtime directory. Empty: that of this user.
Result<Outcome> status(const std::string& runtime_dir);
// Why each step would be chosen or rejected. An empty `job`: of all jobs of the daemon.
Result<Outcome> recover(const std::string& runtime_dir, const std::string& job);
Result<Outcome> stop(const std::string& runtime_dir, std::chrono::milliseconds deadline,
                     bool flush);
Result<Outcome> drop(const std::string& runtime_dir, const std::string& job);

// Read storage; no daemon is needed.
Result<Outcome> list(const std::string& directory);
// `path` is one checkpoint, or a directory of them. Every byte is read.
Result<Outcome> verify(const std::string& path, bool newest_only);

struct DoctorOptions {
  std::string runtime_dir;
  std::string dir;  // Where checkpoints would go; empty: as the options say.
};
Result<Outcome> doctor(const DoctorOptions& given);

}  // namespace ckpt::cli
