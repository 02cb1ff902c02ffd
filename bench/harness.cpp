#include "bench/harness.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

namespace bench {

namespace {

constexpr double busy_cores_max = 0.5;
constexpr std::size_t pairs_min = 7;
#ifdef __clang__
constexpr const char* compiler = __VERSION__;  // "Clang 19.1.7 ..."
#else
constexpr const char* compiler = "g++ " __VERSION__;
#endif

double quantile_of(std::vector<double> values, double quantile) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = quantile * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const auto above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

Harness::Harness(std::string name, int argc, char** argv) : name_(std::move(name)) {
  CLI::App app("libckpt benchmark: " + name_);
  std::size_t mebibytes = bytes_ >> 20;
  app.add_option("--pairs", pairs_, "Pairs of measurements")->check(CLI::Range(1, 1000));
  app.add_option("--size", mebibytes, "MiB of state")->check(CLI::Range(1, 1 << 20));
  app.add_option("--dir", directory_, "Directory on a disk, for files of the bench")
      ->capture_default_str();
  app.add_option("--results", results_, "Append JSON lines to this file");
  app.add_option("--only", only_, "Parts of the bench")->delimiter(',');
  app.add_flag("--force", force_, "Judge on a busy machine, and with few pairs");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  only_left_ = only_;
  bytes_ = mebibytes << 20;
  busy_before_ = busy_cores();
  if (busy_before_ > busy_cores_max && !force_)
    std::printf("%s: others use %.1f cores: measured, not judged\n", name_.c_str(), busy_before_);
  others_.emplace();
}

void Harness::add_condition(const std::string& text) {
  conditions_ += (conditions_.empty() ? "" : "; ") + text;
}

const std::string& Harness::disk_directory() {
  if (is_disk_checked_) return directory_;
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  const std::string kind = file_system_of(directory_);
  if (error || kind == "tmpfs" || kind == "ramfs") {
    std::fprintf(stderr, "%s: --dir %s: %s\n", name_.c_str(), directory_.c_str(),
                 error ? error.message().c_str() : "that is memory, not a disk");
    std::exit(2);
  }
  std::printf("%s: files in %s (%s)\n", name_.c_str(), directory_.c_str(), kind.c_str());
  add_condition("the disk is " + kind);
  is_disk_checked_ = true;
  return directory_;
}

void Harness::compare(const Bar& bar, const Measure& ours, const Measure& other) {
  const bool is_terminal = ::isatty(STDERR_FILENO) != 0;
  std::vector<double> ratios, our_rates, other_rates;
  ours();
  other();
  for (std::size_t pair = 0; pair < pairs_; ++pair) {
    // A B, then B A, so that a drift hits both alike.
    const bool ours_first = pair % 2 == 0;
    const double first = ours_first ? ours() : other();
    const double second = ours_first ? other() : ours();
    our_rates.push_back(ours_first ? first : second);
    other_rates.push_back(ours_first ? second : first);
    ratios.push_back(our_rates.back() / other_rates.back());
    if (is_terminal)
      std::fprintf(stderr, "\r%s %s: pair %zu of %zu ", name_.c_str(), bar.id.c_str(), pair + 1,
                   pairs_);
  }
  if (is_terminal) std::fprintf(stderr, "\r%60s\r", "");
  Figure figure{bar, quantile_of(ratios, 0.5), quantile_of(ratios, 0.25)};
  figure.high = quantile_of(ratios, 0.75);
  figure.count = pairs_;
  figure.ours = quantile_of(our_rates, 0.5);
  figure.other = quantile_of(other_rates, 0.5);
  record(figure);
}

void Harness::sample(const Bar& bar, double quantile, std::vector<double> samples) {
  Figure figure{bar, quantile_of(samples, quantile), quantile_of(samples, 0.25)};
  figure.high = quantile_of(samples, 0.75);
  figure.count = samples.size();
  figure.ours = figure.median;
  record(figure);
}

bool Harness::is_quiet() const {
  return std::max(busy_before_, busy_others_) <= busy_cores_max;
}

std::string Harness::verdict(const Figure& figure) const {
  if (figure.bar.floor == 0) return "measured";
  const auto reaches = [&](double wanted) {
    return figure.bar.better == Better::higher ? figure.median >= wanted : figure.median <= wanted;
  };
  const bool is_held = reaches(figure.bar.floor);
  if (!figure.bar.is_judged)
    return is_held ? "measured, above the floor" : "measured, below the floor";
  if (!force_ && !is_quiet()) return "not judged: others used the machine";
  if (!force_ && figure.count < pairs_min) return "not judged: too few pairs";
  if (reaches(figure.bar.excellent)) return "excellent";
  return is_held ? "holds" : "BELOW THE FLOOR";
}

void Harness::append(const Figure& figure) const {
  if (results_.empty()) return;
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  char time[32];
  std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  const nlohmann::json line = {
      {"time", time},
      {"bench", name_},
      {"id", figure.bar.id},
      {"what", figure.bar.what},
      {"unit", figure.bar.unit.empty() ? "ratio" : figure.bar.unit},
      {"median", figure.median},
      {"quartiles", {figure.low, figure.high}},
      {"count", figure.count},
      {"ours", figure.ours},
      {"other", figure.other},
      {"excellent", figure.bar.excellent},
      {"floor", figure.bar.floor},
      {"verdict", verdict(figure)},
      {"size", bytes_},
      {"busy_cores", {busy_before_, busy_others_}},
      {"conditions", conditions_},
      {"machine", machine_in_words()},
      {"commit", environment("CKPT_BENCH_COMMIT")},
      {"compiler", compiler},
  };
  std::ofstream(results_, std::ios::app) << line.dump() << "\n";
}

void Harness::record(const Figure& figure) {
  busy_others_ = others_->cores();
  if (!std::exchange(has_heading_, true))
    std::printf("%-5s %-52s %9s %19s %7s %7s  %s\n", "", name_.c_str(), "median", "quartiles", "E",
                "F", "verdict");
  const std::string judged = verdict(figure);
  has_failed_ = has_failed_ || judged.starts_with("BELOW");
  std::printf("%-5s %-52s %9.3f %9.3f %9.3f %7.3g %7.3g  %s", figure.bar.id.c_str(),
              figure.bar.what.c_str(), figure.median, figure.low, figure.high, figure.bar.excellent,
              figure.bar.floor, judged.c_str());
  if (figure.other != 0)
    std::printf(" (%.2f against %.2f G/s)", figure.ours / 1e9, figure.other / 1e9);
  std::printf(" %s\n", figure.bar.unit.c_str());
  std::fflush(stdout);
  append(figure);
}

bool Harness::wants(const std::string& part) {
  known_ += ' ' + part;
  return only_.empty() || std::erase(only_left_, part) > 0;
}

int Harness::finish() {
  for (const std::string& part : only_left_)
    std::fprintf(stderr, "%s: --only: there is no part %s (there are:%s)\n", name_.c_str(),
                 part.c_str(), known_.empty() ? " none" : known_.c_str());
  if (!only_left_.empty()) return 2;
  return has_failed_ ? 1 : 0;
}

double rate(double amount, const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return amount / took.count();
}

void use(const void* data) {
  asm volatile("" : : "r"(data) : "memory");
}

}  // namespace bench
