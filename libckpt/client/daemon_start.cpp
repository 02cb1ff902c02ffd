#include "client/daemon_start.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "os/posix_files.hpp"
#include "os/process.hpp"
#include "os/program_path.hpp"
#include "os/small_file.hpp"

namespace ckpt::client {

namespace {

constexpr Duration first_pause = std::chrono::milliseconds(5);
constexpr Duration longest_pause = std::chrono::milliseconds(250);
constexpr Duration connect_time = std::chrono::seconds(2);
// One block of most file systems: with less, a line of the log or the ready-file finds no place.
constexpr std::uint64_t log_room_min = page_bytes;

bool is_program(const std::string& path) {
  return ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_daemon(const Options& options, const os::EnvironmentCopy& environment) {
  if (!options.daemon_path.empty()) return options.daemon_path;
  const auto named = environment.find("LIBCKPT_DAEMON_PATH");
  if (named && !named->empty()) return *named;
  const auto library = os::library_directory(reinterpret_cast<const void*>(&find_daemon));
  for (const std::string& directory : {library, os::program_directory()}) {
    if (directory.empty()) continue;
    for (const char* name : {"/ckptd", "/../bin/ckptd"}) {
      if (is_program(directory + name)) return directory + name;
    }
  }
  return "ckptd";
}

std::string listen_address(const Options& options) {
  if (options.interface.empty() && options.port == 0) return {};
  std::string host = options.interface, port = std::to_string(options.port);
  for (const Node& node : options.nodes) {
    if (node.name != options.node && options.nodes.size() > 1) continue;
    const auto colon = node.address.rfind(':');
    if (colon == std::string::npos) continue;
    if (host.empty()) host = node.address.substr(0, colon);
    if (options.port == 0) port = node.address.substr(colon + 1);
  }
  return host.empty() ? std::string() : host + ":" + port;
}

std::string why_no_log(const std::string& directory, const Result<os::Space>& space) {
  // A file system like /proc has no blocks at all.
  if (!space || space->bytes_total == 0 || space->bytes_free >= log_room_min) return {};
  return fmt::format(
      "; the file system of {} is full: free some space, or choose another place "
      "with option runtime_dir",
      directory);
}

std::string other_daemons_text(const std::string& place,
                               const std::vector<os::OtherDaemon>& others) {
  std::string text;
  for (const os::OtherDaemon& other : others) {
    text += fmt::format("{}pid {} in {}", text.empty() ? "" : ", ", other.pid,
                        other.runtime_dir.empty() ? "another directory" : other.runtime_dir);
  }
  if (text.empty()) return {};
  return fmt::format(
      "no daemon ran in {}, and one is started there, but this user has others on this machine: "
      "{}. The steps in their memory are not found here. If this job trained under one of them, "
      "end this process, and name its directory by LIBCKPT_RUNTIME_DIR: two daemons that train one "
      "job refuse each other's saves",
      place, text);
}

os::SpawnOptions daemon_command(const Options& options, const os::RuntimeDirectory& directory,
                                const os::EnvironmentCopy& environment) {
  os::SpawnOptions command;
  command.program = find_daemon(options, environment);
  command.environment = environment;
  command.log_path = directory.log();
  command.arguments = {"--runtime-dir", directory.path(), "--log-file", directory.log()};
  if (options.memory_budget != 0) {
    command.arguments.push_back("--memory-budget");
    command.arguments.push_back(std::to_string(options.memory_budget));
  }
  if (const auto address = listen_address(options); !address.empty()) {
    command.arguments.push_back("--listen");
    command.arguments.push_back(address);
  }
  // Otherwise a rank that is bound to some cores would bind the daemon to them.
  if (environment.find("LIBCKPT_ALL_CORES").value_or("").empty())
    command.environment.set("LIBCKPT_ALL_CORES", "true");
  return command;
}

Task<os::LocalConnection> DaemonStart::connect(Time deadline) {
  Duration pause = first_pause;
  while (true) {
    // Step 1.
    const Time try_until = std::min(deadline, clock_.after(connect_time));
    auto connection = co_await os::connect_local(clock_, directory_.socket(), try_until);
    if (connection) {
      start_lock_.reset();
      co_return connection;
    }
    const Errc code = connection.error().code();
    if (code != Errc::not_found && code != Errc::unavailable)
      co_return fail(std::move(connection).error());

    if (auto ended = early_end()) co_return fail(std::move(*ended));
    CKPT_CO_CHECK(start_if_none());
    if (clock_.now() >= deadline) {
      co_return fail(no_answer());
    }
    // Step 4.
    CKPT_CO_CHECK(co_await sleep_until(clock_, std::min(deadline, clock_.after(pause))));
    pause = std::min(pause * 2, longest_pause);
  }
}

// The usual place depends on the environment: XDG_RUNTIME_DIR differs in a login, a container and
// a batch job. A place that was named is meant.
void DaemonStart::warn_of_others() const {
  if (!options_.runtime_dir.empty()) return;
  const std::string text =
      other_daemons_text(directory_.path(), os::other_daemons(directory_.path()));
  if (!text.empty()) log_warning("{}", text);
}

Error DaemonStart::no_answer() const {
  const Time now = clock_.now();
  std::string why = "it did not answer in time";
  if (os::LockFile::is_held(directory_.lock())) {
    why = fmt::format("a daemon holds {}, and does not answer on {}", directory_.lock(),
                      directory_.socket());
  } else if (const Time next = limit_.next(now); next > now) {
    constexpr auto minutes = std::chrono::duration_cast<std::chrono::minutes>(RestartLimit::window);
    why =
        fmt::format("it died {} times within {} min, the next start is in {} s", limit_.recent(now),
                    minutes.count(), std::chrono::ceil<std::chrono::seconds>(next - now).count());
  }
  return Error(Errc::unavailable, fmt::format("connect to the daemon in {}: {}; {}",
                                              directory_.path(), why, end_of_log()));
}

std::string DaemonStart::end_of_log() const {
  const std::string line = os::last_line(directory_.log(), log_bytes_before_);
  if (line.empty())
    return fmt::format("it wrote nothing to its log {}{}", directory_.log(),
                       why_no_log(directory_.path(), os::space_of(directory_.path())));
  return fmt::format("its log {} ends: {}", directory_.log(), line);
}

std::optional<Error> DaemonStart::early_end() {
  if (!spawned_) return std::nullopt;
  const os::ChildState state = os::reap(spawned_->process);
  if (state == os::ChildState::running) return std::nullopt;
  const pid_t pid = spawned_->pid;
  spawned_.reset();
  const bool was_alone = start_lock_.has_value();
  start_lock_.reset();
  // Somebody killed it, which may happen at any time: another one is started.
  if (state == os::ChildState::killed) return std::nullopt;
  // It also ends when a daemon that was started by hand holds the lock, and logs that.
  if (!was_alone || !os::LockFile::acquire(directory_.lock())) return std::nullopt;
  return Error(Errc::io, fmt::format("start the daemon: {}, pid {}, ended; {}",
                                     find_daemon(options_, environment_), pid, end_of_log()));
}

Status DaemonStart::start_if_none() {
  // The daemon that we started is still coming up: we keep the start lock until then.
  if (start_lock_) return {};
  const Time now = clock_.now();
  if (const Time next = limit_.next(now); next > now) {
    if (logged_pause_ != next) log_warning("{}", no_answer().text());
    logged_pause_ = next;
    return {};
  }
  // Step 2.
  auto lock = os::LockFile::acquire(directory_.start_lock());
  if (!lock) {
    if (lock.error().code() == Errc::unavailable) return {};
    return fail(std::move(lock).error());
  }
  // Step 3.
  {
    const auto running = os::LockFile::acquire(directory_.lock());
    if (!running) {
      if (running.error().code() == Errc::unavailable) return {};
      return fail(Error(running.error()));
    }
  }
  CKPT_POINT("daemon.spawn.before");
  const auto command = daemon_command(options_, directory_, environment_);
  log_bytes_before_ = os::file_bytes(directory_.log());
  auto spawned = os::spawn_detached(command);
  if (!spawned) {
    return fail(std::move(spawned).error().context(
        "start the daemon, which option daemon_path (environment LIBCKPT_DAEMON_PATH) can name"));
  }
  CKPT_POINT("daemon.spawn.after");
  limit_.started(now);
  log_info("started {} as pid {}, its log is {}", command.program, spawned->pid, directory_.log());
  spawned_ = std::move(*spawned);
  start_lock_ = std::move(*lock);
  warn_of_others();
  return {};
}

}  // namespace ckpt::client
