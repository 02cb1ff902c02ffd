// Terminal: its width, and one line of progress that is written over.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ckpt::cli {

// The columns of standard output; 0: it is no terminal, and lines have no limit. COLUMNS, if it is
// set, counts for a terminal and for anything else.
std::size_t text_width();
// The columns of standard error; 0: it is no terminal. COLUMNS counts for a terminal alone.
std::size_t error_width();

// Progress: one line on standard error that is written over, while that is a terminal.
class Progress {
 public:
  Progress(std::uint64_t bytes_total, bool is_wanted);
  ~Progress();  // Takes the line away.
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void add(std::uint64_t bytes);

 private:
  using Clock = std::chrono::steady_clock;
  const std::uint64_t total_;
  const bool is_shown_;
  const Clock::time_point began_ = Clock::now();
  Clock::time_point shown_at_{};
  std::uint64_t done_ = 0;
};

// "37 %  4.2 GiB of 11.3 GiB  1.2 GiB/s  6 s left".
std::string progress_text(std::uint64_t done, std::uint64_t total, double seconds);

}  // namespace ckpt::cli
