// Process: a program that a benchmark starts, reads from, and ends.
//
// It dies with us, even if we are killed.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace bench {

using Command = std::vector<std::string>;  // The program is looked up in PATH.

class Process {
 public:
  // Shares our standard error. Ends the bench if the program does not exist.
  static Process start(const Command& command);

  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();  // Kills it.

  pid_t pid() const { return pid_; }
  // The next line of its output, without the line end. Ends the bench if none comes in time.
  std::string read_line(std::chrono::milliseconds deadline = std::chrono::minutes(2));
  // The rest of its output until it ends, and its exit code.
  std::string read_all();
  int wait();
  void kill(int signal);

 private:
  Process(pid_t pid, int output) : pid_(pid), output_(output) {}

  pid_t pid_ = -1;
  int output_ = -1;
  std::string unread_;
};

// Runs it to the end and returns its output; ends the bench if it failed.
std::string output_of(const Command& command);
bool succeeds(const Command& command);

// The path of this program, for benches that start themselves again in another role.
std::string own_path();

}  // namespace bench
