#include "base/kill_point.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>

#include "base/kill_point_rules.hpp"

namespace ckpt::detail {

std::atomic<bool> points_armed{false};

namespace {

constexpr std::size_t rules_max = 32;
constexpr std::size_t labels_max = 1024;  // tests/crash counts far fewer in the sources.

struct ArmedRule {
  PointRule rule;
  std::atomic<std::uint32_t> hits{0};
};

// Fixed tables and atomics only: a point may be hit on any thread, and in a forked child. Never
// destroyed: points are hit until the last static destructor has run.
struct Armed {
  std::array<ArmedRule, rules_max> rules;
  std::size_t rule_count = 0;
  std::array<std::atomic<std::uint64_t>, labels_max> seen{};
  const char* log_path = nullptr;
  const char* release_path = nullptr;
};
Armed* armed = nullptr;

[[noreturn]] void refuse(const char* text) {
  std::fprintf(stderr, "libckpt: LIBCKPT_POINTS cannot be used: %s\n", text);
  std::_Exit(2);
}

bool arm_from_environment() {
  const char* rules = std::getenv("LIBCKPT_POINTS");
  const char* log_path = std::getenv("LIBCKPT_POINTS_LOG");
  if (rules == nullptr && log_path == nullptr) return false;
  armed = new Armed;
  armed->log_path = log_path;
  armed->release_path = std::getenv("LIBCKPT_POINTS_RELEASE");
  if (rules != nullptr) {
    // A test that asks for what cannot happen must fail here, not pass untested.
    const auto parsed = parse_point_rules(rules);
    if (!parsed) refuse(parsed.error().text().c_str());
    if (parsed->size() > rules_max) refuse("too many rules");
    for (const PointRule& rule : *parsed) armed->rules[armed->rule_count++].rule = rule;
  }
  points_armed.store(true);
  return true;
}
[[maybe_unused]] const bool armed_at_start = arm_from_environment();

// Returns true the first time that this process hits `label`. Open addressing over hashes: two
// labels with the same hash would count as one, which 64 bits make unlikely enough.
bool is_first_hit(std::string_view label) {
  const std::uint64_t hash = std::hash<std::string_view>{}(label) | 1;  // 0 means empty.
  for (std::size_t probe = 0; probe < labels_max; ++probe) {
    auto& cell = armed->seen[(hash + probe) % labels_max];
    std::uint64_t found = 0;
    if (cell.compare_exchange_strong(found, hash)) return true;
    if (found == hash) return false;
  }
  return false;
}

void record(std::string_view label) {
  std::array<char, 256> line{};
  const std::size_t bytes = std::min(label.size(), line.size() - 1);
  std::memcpy(line.data(), label.data(), bytes);
  line[bytes] = '\n';
  const int fd = ::open(armed->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  // One write of one line: O_APPEND keeps the lines of several processes whole.
  [[maybe_unused]] const ssize_t written = ::write(fd, line.data(), bytes + 1);
  ::close(fd);
}

void wait_for_release() {
  if (armed->release_path == nullptr) refuse("pause needs LIBCKPT_POINTS_RELEASE");
  const timespec millisecond{0, 1'000'000};
  while (::access(armed->release_path, F_OK) != 0) ::nanosleep(&millisecond, nullptr);
}

void act(PointAction action) {
  switch (action) {
    case PointAction::log:
      return;
    case PointAction::kill:
      ::kill(::getpid(), SIGKILL);
      for (;;) ::pause();  // Another thread runs the signal: nothing after the point may happen.
    case PointAction::stop:
      ::kill(::getpid(), SIGSTOP);
      return;
    case PointAction::abort:
      std::abort();
    case PointAction::pause:
      wait_for_release();
      return;
  }
}

}  // namespace

void hit_point(std::string_view label) {
  if (armed == nullptr) return;
  if (armed->log_path != nullptr && is_first_hit(label)) record(label);
  for (std::size_t i = 0; i < armed->rule_count; ++i) {
    ArmedRule& candidate = armed->rules[i];
    if (candidate.rule.label != label) continue;
    const std::uint32_t hit = candidate.hits.fetch_add(1) + 1;
    const bool is_due = candidate.rule.action == PointAction::kill ? hit >= candidate.rule.at_hit
                                                                   : hit == candidate.rule.at_hit;
    if (is_due) act(candidate.rule.action);
  }
}

}  // namespace ckpt::detail
