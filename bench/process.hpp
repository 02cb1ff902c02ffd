// Process: a program that a benchmark starts, talks to by its standard output, and ends.
//
// It dies with us: also when we are killed.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace bench {

using Command = std::vector<std::string>;  // The program is looked up in PATH.

class Process {
 public:
  // Its standard error is ours. Ends the bench when the program is not there.
  static Process start(const Command& command);

  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();  // Kills it.

  pid_t pid() const { return pid_; }
  // The next line of its output, without the end of line; ends the bench when there is none in
  // time.
  std::string read_line(std::chrono::milliseconds deadline = std::chrono::minutes(2));
  // All that it still says, until it ends, and its exit code.
  std::string read_all();
  int wait();
  void kill(int signal);

 private:
  Process(pid_t pid, int output) : pid_(pid), output_(output) {}

  pid_t pid_ = -1;
  int output_ = -1;
  std::string unread_;
};

// Runs it to the end and returns what it said; ends the bench when it failed.
std::string output_of(const Command& command);
bool succeeds(const Command& command);

// The path of this program, for those that start themselves again in another role.
std::string own_path();

}  // namespace bench
