// DaemonOptions: the options of ckptd. Flags beat the environment (LIBCKPT_ and the name in
// capitals), which beats the file of --config.
#pragma once

#include <chrono>
#include <ckpt/result.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::daemon {

struct DaemonOptions {
  std::string runtime_dir;          // Empty: by user, see os/runtime_directory.hpp.
  std::uint64_t memory_budget = 0;  // Bytes; 0: half of what is available at the start.
  std::string listen;               // host:port for peers; empty: each job's own.
  std::chrono::milliseconds idle_limit = std::chrono::hours(2);
  std::chrono::milliseconds job_idle_limit = std::chrono::hours(2);
  std::chrono::milliseconds flush_stalled_after = std::chrono::minutes(1);
  std::chrono::milliseconds verify_every = std::chrono::minutes(10);  // 0: never.
  bool verify_stored = false;
  bool require_mount = false;
  std::string
      confine_to;  // Directories, with commas: files change only below them. Empty: anywhere.
  std::chrono::milliseconds stop_deadline = std::chrono::minutes(5);  // For the flush at SIGTERM.
  int nice = 10;           // Between 0 and 19: training goes first.
  bool all_cores = false;  // Also those outside of the set it was started on.
  std::string log_file;    // Empty: ckptd.log in the runtime directory.
  std::string log_level = "info";
  bool foreground = false;  // Logs to standard error, unless a log file is named.
};

// The next action of the program, once its arguments are read.
struct Parsed {
  DaemonOptions options;
  bool must_exit = false;  // After --help or --version, or wrong use.
  int exit_code = 0;
  std::string text;  // To print before exiting.
};
Parsed parse_arguments(int count, const char* const* arguments);

// "64GiB" and "1048576"; "2h", "15min", "90s", "250ms". Errors: invalid_argument.
Result<std::uint64_t> parse_bytes(const std::string& text);
Result<std::chrono::milliseconds> parse_duration(const std::string& text);
// "/a,/b", with blanks around the comma; none for an empty text. Errors: invalid_argument.
Result<std::vector<std::string>> parse_directories(const std::string& text);

// Every effective value, one per line, for the log at the start.
std::vector<std::string> describe(const DaemonOptions& options);

}  // namespace ckpt::daemon
