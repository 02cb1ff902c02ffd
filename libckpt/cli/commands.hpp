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
#include "storage/retention.hpp"

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

struct RepairOptions {
  std::string path;  // As for verify.
  std::string from;  // One checkpoint, or a directory of them: another copy of what is damaged.
};
// Replaces damaged files, where the other copy has them, and verifies everything.
Result<Outcome> repair(const RepairOptions& given);

struct GcOptions {
  std::string dir;
  storage::RetentionRule rule;  // Without max_ckpt_num: no checkpoint goes.
  // Whether these parts of the rule were given, or else are those that the job has recorded.
  bool has_every = false;
  bool has_best = false;
  bool dry_run = false;
  std::string runtime_dir;  // The daemon that may work there has this one.
};
// Removes checkpoints that the rule does not keep, and what ended attempts left behind.
Result<Outcome> collect_garbage(const GcOptions& given);

struct CopyOptions {
  std::string from;
  std::string to;
  std::string runtime_dir;  // The daemon's whose memory FROM may name; so in the next ones.
  bool json = false;        // Then there is no progress on standard error.
};
// Brings one checkpoint into another directory, verified and resumable.
Result<Outcome> copy(const CopyOptions& given);

struct ImportOptions {
  std::vector<std::string> from;
  std::string to;
  std::string job;                // Empty: the name of `to`.
  std::string prefix = "model.";  // Goes before each tensor's name.
  std::uint64_t step = 0;
  bool json = false;  // Then there is no progress on standard error.
};
// Makes a checkpoint of files that other programs wrote.
Result<Outcome> import_tensors(const ImportOptions& given);

struct InspectOptions {
  std::string path;
  std::string runtime_dir;
  std::vector<std::string> names;  // Globs; none: all.
  bool pieces = false;             // In the text; the JSON has them always.
};
Result<Outcome> inspect(const InspectOptions& given);

struct ExportOptions {
  std::string path;
  std::string runtime_dir;
  std::string out;
  std::string format;          // "safetensors", "torch", "hf", "dcp".
  std::string max_shard_size;  // Only with "hf"; empty: the default.
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
  std::string runtime_dir;
  std::vector<std::string> names;
};
Result<Outcome> diff(const DiffOptions& given);

struct DoctorOptions {
  std::string runtime_dir;
  std::string dir;  // The directory for checkpoints; empty: from the options.
};
Result<Outcome> doctor(const DoctorOptions& given);

}  // namespace ckpt::cli
