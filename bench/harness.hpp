// Harness: measures one thing against another, and says whether the bar is met.
//
// Machines are shared and noisy, so a figure is a ratio of two things measured in one run, in pairs
// A B, B A, A B, ... The result is the median of the pairs' ratios, with its quartiles. A bench
// does not judge if others used more than half a core in the second before it or during it, unless
// --force is given.
//
//   int main(int argc, char** argv) {
//     bench::Harness harness("checksum", argc, argv);
//     harness.compare({"K1", "crc32_copy / memcpy", 0.82, 0.72}, ours, memcpy);
//     return harness.finish();
//   }
//
// Threads: one; measured code may have its own.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/machine.hpp"

namespace bench {

enum class Better { higher, lower };

// Bar: the value to reach. Without a floor the figure is only measured and recorded.
struct Bar {
  std::string id;    // "B1"
  std::string what;  // "snapshot / memcpy, same threads"
  double excellent = 0;
  double floor = 0;
  Better better = Better::higher;
  std::string unit;  // For an absolute figure; empty: a ratio.
  // False: the floor is only shown beside the figure, and missing it is no failure.
  bool is_judged = true;
};

// One measurement, a rate: bytes per second, or calls per second.
using Measure = std::function<double()>;

class Harness {
 public:
  // Reads --pairs N (at least 7 to judge), --size MiB, --dir DIRECTORY, --force, --results FILE,
  // --only PART,... Exits on anything else.
  Harness(std::string name, int argc, char** argv);

  // The ratio of two rates. Each is called once beforehand, uncounted, to warm up.
  void compare(const Bar& bar, const Measure& ours, const Measure& other);
  // Samples of an absolute value. The given quantile of them is the result (0.5: the median).
  void sample(const Bar& bar, double quantile, std::vector<double> samples);
  // A fact that readers of the figures need: "the disk is ext4". Printed, and kept with each
  // figure.
  void add_condition(const std::string& text);

  // Whether this part of the bench is to be run: --only names it, or names nothing.
  bool wants(const std::string& part);
  std::size_t bytes() const { return bytes_; }  // --size: of the state to work on.
  std::size_t pairs() const { return pairs_; }
  const std::string& directory() const { return directory_; }  // --dir, as it is.
  // --dir: the directory for files. Created, and refused if it is memory instead of a disk.
  const std::string& disk_directory();

  // Each figure is printed, and appended as one JSON line, the moment it exists: a bench that hangs
  // or dies loses nothing before. Returns 0, 1 if a floor was missed, or 2 if --only names a part
  // that nobody asked for.
  int finish();

 private:
  struct Figure {
    Bar bar;
    double median = 0;
    double low = 0;   // Lower quartile.
    double high = 0;  // Upper quartile.
    std::size_t count = 0;
    double ours = 0;   // Median rates, for the reader.
    double other = 0;  // 0: absolute.
  };

  void record(const Figure& figure);
  bool is_quiet() const;
  std::string verdict(const Figure& figure) const;
  void append(const Figure& figure) const;

  std::string name_;
  std::size_t pairs_ = 9;
  std::size_t bytes_ = std::size_t{1} << 30;
  std::string directory_ = "/var/tmp/ckpt-bench";
  std::string results_;
  bool force_ = false;
  bool is_disk_checked_ = false;
  double busy_before_ = 0;  // Cores in use in the second before.
  double busy_others_ = 0;  // Cores that others used while it ran.
  std::optional<Others> others_;
  std::string conditions_;
  std::vector<std::string> only_;
  std::vector<std::string> only_left_;  // Not asked for yet.
  std::string known_;                   // The parts that were asked for.
  bool has_heading_ = false;
  bool has_failed_ = false;  // A floor was missed.
};

// Runs `work` once and returns `amount` per second.
double rate(double amount, const std::function<void()>& work);

// Keeps the compiler from seeing through the bytes at `data`.
void use(const void* data);

}  // namespace bench
