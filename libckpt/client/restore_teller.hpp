// RestoreTeller: reports the progress of a restore to its watch, not too often.
//
// Threads: the one that restores.
#pragma once

#include <chrono>
#include <ckpt/progress.hpp>
#include <string>

namespace ckpt::client {

class RestoreTeller {
 public:
  // Often enough for a person.
  static constexpr std::chrono::milliseconds interval{100};

  void watch(RestoreWatch watch);

  // Begins a phase that counts bytes. done() adds to them.
  void begin(RestoreProgress::Phase phase, std::string source_name, std::uint64_t bytes_total);
  void done(std::uint64_t bytes);
  void end();

  // Whether the watch has returned false.
  bool is_given_up() const { return is_given_up_; }

 private:
  RestoreWatch watch_;
  bool is_given_up_ = false;
  RestoreProgress progress_;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace ckpt::client
