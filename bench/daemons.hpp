// Daemons: real ckptd processes for a benchmark, each with a runtime directory of its own.
#pragma once

#include <string>

#include "bench/process.hpp"

namespace bench {

class Daemon {
 public:
  // Empties `runtime_dir`, and returns when the daemon accepts trainers. `start` runs it elsewhere,
  // as TwoHosts::on_far does; empty: here.
  Daemon(std::string runtime_dir, const Command& start_with = {});
  ~Daemon();  // Kills it; its memory is gone.

  const std::string& runtime_dir() const { return runtime_dir_; }
  pid_t pid() const { return pid_; }
  // Frees the memory of a job, once its trainers have gone.
  void drop(const std::string& job) const;

 private:
  std::string runtime_dir_;
  Process process_;
  pid_t pid_;
};

}  // namespace bench
