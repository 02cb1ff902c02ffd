#include "daemon/daemon_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <ckpt/version.hpp>
#include <cstdlib>
#include <limits>
#include <map>
#include <sstream>

#include "base/byte_text.hpp"
#include "base/log_level.hpp"
#include "base/units.hpp"
#include "base/variables.hpp"
#include "os/small_file.hpp"
#include "wire/address.hpp"

namespace ckpt::daemon {

namespace {

using std::chrono::milliseconds;

using Units = std::map<std::string, std::uint64_t>;

// Parses a whole number with a unit; blanks between them are allowed.
Result<std::uint64_t> parse_with_unit(const std::string& text, const Units& units,
                                      const char* examples) {
  const auto refuse = [&] {
    return fail(Errc::invalid_argument, fmt::format("\"{}\" is not like {}", text, examples));
  };
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc()) return refuse();
  const std::string_view tail(rest, static_cast<std::size_t>(end - rest));
  const auto start = tail.find_first_not_of(' ');
  const std::string unit(start == std::string_view::npos ? "" : tail.substr(start));
  const auto found = units.find(unit);
  if (found == units.end()) return refuse();
  if (value > std::numeric_limits<std::int64_t>::max() / found->second) return refuse();
  return value * found->second;
}

std::string trimmed(std::string text) {
  const auto begin = text.find_first_not_of(' ');
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

// Works as a check of CLI11: an empty result is success.
template <class Parse>
std::string check(const std::string& text, Parse parse) {
  const auto parsed = parse(text);
  return parsed ? std::string() : parsed.error().text();
}

// A healthy writer reports its progress every few heartbeats.
Result<milliseconds> parse_patience(const std::string& text) {
  CKPT_TRY(const milliseconds patience, parse_duration(text));
  if (patience < std::chrono::seconds(1))
    return fail(Errc::invalid_argument, "less than 1s: " + text);
  return patience;
}

// CLI11 keeps the texts; they are converted once all of them are accepted.
struct Texts {
  std::string memory_budget = "0", idle_limit = "2h", job_idle_limit = "2h", stop_deadline = "5min",
              flush_stalled_after = "1min", verify_every = "10min";
};

// In CLI11 the file would beat the environment. So the environment is passed as flags before the
// real ones: flags beat the file, and later flags beat earlier ones.
std::vector<std::string> with_environment(int count, const char* const* arguments) {
  std::vector<std::string> all;
  for (const DaemonFlag& flag : daemon_flags) {
    const char* value = std::getenv(flag.variable);
    if (value == nullptr || *value == '\0') continue;
    // A trainer trains on with an unknown level, and so its daemon must not fail to start by it.
    const bool is_unknown_level =
        std::string_view(flag.variable) == log_level_variable && !log_level_named(value);
    if (!is_unknown_level) all.push_back(std::string(flag.name) + "=" + value);
  }
  for (int index = 1; index < count; ++index) all.emplace_back(arguments[index]);
  std::reverse(all.begin(), all.end());  // The order that CLI11 wants.
  return all;
}

void add_config_file(CLI::App& app) {
  // CLI11 takes an unreadable file for an empty one, and would block on a FIFO.
  const CLI::Validator readable(
      [](std::string& path) {
        return check(path, [](const std::string& it) { return os::read_file(it, MiB); });
      },
      "");
  // With its own separator it would divide values at blanks and commas, and take the last part.
  app.get_config_formatter_base()->arrayDelimiter('\0');
  app.set_config("--config", "", "Reads options from a file: name = value")
      ->take_last()
      ->check(readable)
      ->type_name("FILE");
}

void add_options(CLI::App& app, DaemonOptions& options, Texts& texts) {
  const CLI::Validator bytes([](std::string& text) { return check(text, parse_bytes); }, "SIZE");
  const CLI::Validator duration([](std::string& text) { return check(text, parse_duration); },
                                "DURATION");
  const CLI::Validator address([](std::string& text) { return check(text, wire::Address::parse); },
                               "HOST:PORT");
  const CLI::Validator directories([](std::string& text) { return check(text, parse_directories); },
                                   "DIR[,DIR...]");
  app.option_defaults()->take_last();
  add_config_file(app);
  app.add_option("--runtime-dir", options.runtime_dir, "Directory of socket, lock and log");
  app.add_option("--memory-budget", texts.memory_budget,
                 "Memory for Slots, such as 64GiB; 0: half of the available memory")
      ->check(bytes);
  app.add_option("--listen", options.listen, "host:port for peers; default: each job's own")
      ->check(address);
  app.add_option("--idle-limit", texts.idle_limit, "Ends after this long without a job or memory")
      ->check(duration)
      ->capture_default_str();
  app.add_option("--job-idle-limit", texts.job_idle_limit,
                 "Stores and frees the memory of a job that has had no trainer for this long")
      ->check(duration)
      ->capture_default_str();
  app.add_option("--flush-stalled-after", texts.flush_stalled_after,
                 "Gives a writer's part of a step to another node after this long without "
                 "progress; at least 1s")
      ->check(
          CLI::Validator([](std::string& text) { return check(text, parse_patience); }, "DURATION"))
      ->capture_default_str();
  app.add_option("--verify-every", texts.verify_every,
                 "Compares the copies in memory with their checksums this often, and replaces "
                 "damaged ones; 0s: never")
      ->check(duration)
      ->capture_default_str();
  app.add_flag("--verify-stored", options.verify_stored,
               "Reads the newest stored files of its own ranks each time, too");
  app.add_flag("--require-mount", options.require_mount,
               "Refuses a job's directory on the root file system, as below a mount point where "
               "nothing is mounted");
  app.add_option(
         "--confine-to", options.confine_to,
         "The kernel (Landlock) lets it change files only below these directories, and its own "
         "in the runtime directory")
      ->check(directories);
  app.add_option("--stop-deadline", texts.stop_deadline, "Time limit of the flush at SIGTERM")
      ->check(duration)
      ->capture_default_str();
  app.add_option("--nice", options.nice,
                 "Priority of its threads, 0 to 19; 19 gives way most to training")
      ->check(CLI::Range(0, 19))
      ->capture_default_str();
  app.add_flag("--all-cores", options.all_cores,
               "Runs on every core that the kernel allows, not only on those it was started on; "
               "trainers start it like this");
  app.add_option("--log-file", options.log_file, "Default: ckptd.log in the runtime directory");
  app.add_option("--log-level", options.log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  app.add_flag("--foreground", options.foreground, "Logs to standard error");

  std::string names = "\nFlags beat the environment, which beats the file:\n";
  for (const DaemonFlag& flag : daemon_flags)
    names += fmt::format("  {:<22} {}\n", flag.name, flag.variable);
  app.footer(names);
}

}  // namespace

Result<std::uint64_t> parse_bytes(const std::string& text) {
  if (const auto bytes = parse_byte_text(text)) return *bytes;
  return fail(Errc::invalid_argument, fmt::format("\"{}\" is not like {}", text, byte_examples));
}

Result<milliseconds> parse_duration(const std::string& text) {
  static const Units units = {{"ms", 1},     {"s", 1000},      {"min", 60'000},
                              {"m", 60'000}, {"h", 3'600'000}, {"d", 86'400'000}};
  CKPT_TRY(const auto count, parse_with_unit(text, units, "250ms, 90s, 15min or 2h"));
  // Keeps sums with the current time within 64-bit nanoseconds.
  constexpr std::uint64_t longest = 100ull * 365 * 86'400'000;
  return milliseconds(std::min(count, longest));
}

Result<std::vector<std::string>> parse_directories(const std::string& text) {
  std::vector<std::string> directories;
  if (text.empty()) return directories;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string directory = trimmed(text.substr(begin, end - begin));
    while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
    if (directory.empty() || directory.front() != '/')
      return fail(Errc::invalid_argument,
                  fmt::format("\"{}\" is not like /ckpt or /ckpt,/scratch/ckpt", text));
    if (directory == "/")
      return fail(Errc::invalid_argument, "/ is everything, and confines nothing");
    directories.push_back(std::move(directory));
    begin = end + 1;
  }
  return directories;
}

Parsed parse_arguments(int count, const char* const* arguments) {
  Parsed parsed;
  Texts texts;
  CLI::App app("The daemon that owns the node's checkpoint memory.", "ckptd");
  app.set_version_flag("--version", std::string("ckptd " CKPT_VERSION_STRING));
  add_options(app, parsed.options, texts);
  // One line: a trainer that started us shows its user the last line of our log.
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return fmt::format("ckptd: {}; `ckptd --help` lists flags and environment\n", error.what());
  });
  try {
    app.parse(with_environment(count, arguments));
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    parsed.must_exit = true;
    parsed.exit_code = app.exit(error, out, out) == 0 ? 0 : 2;
    parsed.text = out.str();
    return parsed;
  }
  // The checks above have accepted every text.
  parsed.options.memory_budget = parse_bytes(texts.memory_budget).value();
  parsed.options.idle_limit = parse_duration(texts.idle_limit).value();
  parsed.options.job_idle_limit = parse_duration(texts.job_idle_limit).value();
  parsed.options.flush_stalled_after = parse_duration(texts.flush_stalled_after).value();
  parsed.options.verify_every = parse_duration(texts.verify_every).value();
  parsed.options.stop_deadline = parse_duration(texts.stop_deadline).value();
  return parsed;
}

std::vector<std::string> describe(const DaemonOptions& options) {
  const auto seconds = [](milliseconds time) { return fmt::format("{}s", time.count() / 1000.0); };
  return {
      "runtime_dir=" + options.runtime_dir,
      fmt::format("memory_budget={}", options.memory_budget),
      "listen=" + (options.listen.empty() ? "(each job's own)" : options.listen),
      "idle_limit=" + seconds(options.idle_limit),
      "job_idle_limit=" + seconds(options.job_idle_limit),
      "flush_stalled_after=" + seconds(options.flush_stalled_after),
      "verify_every=" + seconds(options.verify_every),
      fmt::format("verify_stored={}", options.verify_stored),
      fmt::format("require_mount={}", options.require_mount),
      "confine_to=" + (options.confine_to.empty() ? "(nothing)" : options.confine_to),
      "stop_deadline=" + seconds(options.stop_deadline),
      fmt::format("nice={}", options.nice),
      fmt::format("all_cores={}", options.all_cores),
      "log_file=" + (options.log_file.empty() ? "(standard error)" : options.log_file),
      "log_level=" + options.log_level,
  };
}

}  // namespace ckpt::daemon
