// Commands: each a function from its arguments to an Outcome; one .cpp for each.
//
// Error texts say what was attempted, and what to do about it. invalid_argument means wrong use of
// the command line; every other code means trouble.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.hpp"

namespace ckpt::cli {

// These talk to the daemon of a runtime directory. Empty: this user's.
Result<Outcome> status(const std::string& runtime_dir);
// Explains why each step would be chosen or rejected. An empty `job`: all jobs of the daemon.
Result<Outcome> recover(const std::string& runtime_dir, const std::string& job);
Result<Outcome> stop(const std::string& runtime_dir, std::chrono::milliseconds deadline,
                     bool flush);
Result<Outcome> drop(const std::string& runtime_dir, const std::string& job);

// These read storage and need no daemon.
Result<Outcome> list(const std::string& directory);
// Reads every byte. `path` is one checkpoint, or a directory of them.
Result<Outcome> verify(const std::string& path, bool newest_only);

struct InspectOptions {
  std::string path;
  std::vector<std::string> names;  // Globs; none: all.
  bool pieces = false;             // In the text; the JSON has them always.
};
Result<Outcome> inspect(const InspectOptions& given);

struct ExportOptions {
  std::string path;
  std::string out;
  std::string format;  // "safetensors", "hf".
  std::string max_shard_size;
  std::vector<std::string> names;
  std::string strip;
  std::optional<std::uint32_t> rank;
  bool copy_tied = false;
  bool force = false;
  bool json = false;  // Then there is no progress on standard error.
};
Result<Outcome> export_tensors(const ExportOptions& given);

struct DiffOptions {
  std::string one, other;
  std::vector<std::string> names;
};
Result<Outcome> diff(const DiffOptions& given);

struct DoctorOptions {
  std::string runtime_dir;
  std::string dir;  // The directory for checkpoints; empty: from the options.
};
Result<Outcome> doctor(const DoctorOptions& given);

}  // namespace ckpt::cli
