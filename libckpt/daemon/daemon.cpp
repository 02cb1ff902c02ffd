// The daemon's life:
//
//   1. It checks the runtime directory and takes its lock: there is one daemon, or none.
//   2. It assembles its parts, listens on the socket, and writes the ready-file.
//   3. It serves until a signal, the command line or the idle limit ends it.
//   4. It flushes what it holds, ends connections, removes the ready-file, and frees the lock.
#include "daemon/daemon.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <chrono>
#include <ckpt/version.hpp>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "arena/arena_limits.hpp"
#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "base/log_level.hpp"
#include "base/random.hpp"
#include "base/spawn.hpp"
#include "bucket/any_file_system.hpp"
#include "daemon/confinement.hpp"
#include "daemon/ready_file.hpp"
#include "os/cores.hpp"
#include "os/limits.hpp"
#include "os/memory_available.hpp"
#include "os/ring_file_system.hpp"
#include "os/small_file.hpp"
#include "os/thread_settings.hpp"

namespace ckpt::daemon {

namespace {

// A trainer that checks for a daemon holds the lock for an instant.
constexpr int lock_attempts = 50;
constexpr std::chrono::milliseconds lock_pause(10);
// For the rest after the flush: connections and coroutines that only have to notice the end.
constexpr Duration end_time = std::chrono::seconds(5);
constexpr std::chrono::seconds daemon_drain_time(2);
// Shorter than trainers and `ckpt` wait.
constexpr Duration reachable_interval = std::chrono::seconds(1);
// Attempts at a job's flush, two or more seconds apart, before `ckpt stop` reports the failure.
constexpr std::uint32_t stop_failures_max = 2;

std::uint64_t available_bytes() {
  const auto available = os::memory_available();
  return available ? available->bytes : 0;
}

arena::SharedMemoryOptions memory_options() {
  arena::SharedMemoryOptions options;
  options.available_bytes = available_bytes;
  return options;
}

node::EngineOptions engine_options(const DaemonOptions& options) {
  node::EngineOptions engine;
  engine.name = fmt::format("ckptd pid {}", ::getpid());
  engine.boot = random_from_system();
  engine.memory_budget = options.memory_budget;
  engine.listen_address = options.listen;
  engine.job_idle_limit = options.job_idle_limit;
  engine.flush_stalled_after = options.flush_stalled_after;
  engine.verify_every = options.verify_every;
  engine.verify_stored = options.verify_stored;
  engine.require_mount = options.require_mount;
  return engine;
}

Result<os::LockFile> take_lock(const os::RuntimeDirectory& directory) {
  for (int attempt = 1;; ++attempt) {
    auto lock = os::LockFile::acquire(directory.lock());
    if (lock || lock.error().code() != Errc::unavailable) return lock;
    if (attempt == lock_attempts) break;
    std::this_thread::sleep_for(lock_pause);
  }
  std::string who = "another daemon";
  if (const auto text = os::read_file(directory.ready(), 64 * 1024)) {
    if (const auto ready = parse_ready(*text))
      who += fmt::format(", pid {}, libckpt {},", ready->process.pid, ready->version);
  }
  return fail(Errc::unavailable,
              fmt::format("{} runs in {}: `ckpt stop` ends it, --runtime-dir names another place",
                          who, directory.path()));
}

bucket::BucketUse bucket_use(Clock& clock) {
  bucket::BucketUse use;
  const std::time_t now = std::chrono::system_clock::to_time_t(clock.wall_time());
  use.environment = bucket::Environment::of_daemon(
      ::getpid(), fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(now)));
  return use;
}

std::unique_ptr<os::FileSystem> make_disk(const std::vector<os::ConfinedTo>& confined) {
  auto disk = os::make_file_system();
  return confined.empty() ? std::move(disk) : os::explain_confinement(std::move(disk), confined);
}

}  // namespace

Result<std::unique_ptr<Daemon>> Daemon::open(DaemonOptions options) {
  // Step 1.
  CKPT_TRY(auto directory, os::RuntimeDirectory::open(options.runtime_dir));
  CKPT_TRY(auto lock, take_lock(directory));
  options.runtime_dir = directory.path();
  if (options.log_file.empty() && !options.foreground) options.log_file = directory.log();
  Log::set_program("ckptd");
  Log::set_level(log_level_named(options.log_level).value_or(LogLevel::info));
  if (!options.log_file.empty()) CKPT_CHECK(Log::open_file(options.log_file));
  CKPT_POINT("start.locked");
  warn_of_unknown_log_level();

  if (options.memory_budget == 0) options.memory_budget = available_bytes() / 2;
  if (options.memory_budget == 0)
    return fail(Errc::invalid_argument,
                "choose a memory budget: the available memory cannot be read; name a size with "
                "--memory-budget");
  // Before any thread exists, since threads inherit all three.
  if (const Status gave_way = os::give_way(options.nice); !gave_way)
    log_warning("the daemon may slow down training: {}", gave_way.error().message());
  if (options.all_cores) {
    if (const Status widened = os::use_all_cores(); !widened)
      log_warning("the daemon stays on the cores it was started on: {}", widened.error().message());
  }
  CKPT_TRY(Confined confined, confine(options));
  // Step 2.
  std::unique_ptr<Daemon> daemon(
      new Daemon(std::move(options), std::move(confined), std::move(directory), std::move(lock)));
  CKPT_CHECK(daemon->start());
  return daemon;
}

Daemon::Daemon(DaemonOptions options, Confined confined, os::RuntimeDirectory directory,
               os::LockFile lock)
    : options_(std::move(options)),
      confined_(std::move(confined)),
      directory_(std::move(directory)),
      lock_(std::move(lock)),
      context_(1),
      signals_(context_, SIGTERM, SIGINT),
      clock_(make_system_clock(context_.get_executor())),
      memory_(memory_options()),
      files_(bucket::with_buckets(make_disk(confined_), *clock_, os::DiskPriority::background,
                                  bucket_use(*clock_))),
      hash_threads_(std::make_unique<os::HashThreads>()),
      network_(context_.get_executor(), *clock_),
      engine_(std::make_unique<node::Engine>(
          context_.get_executor(),
          node::Seams{*clock_, memory_, *files_, network_, hash_threads_.get(), lines_.seams()},
          engine_options(options_))),
      server_(std::make_unique<ControlServer>(context_.get_executor(), *clock_, *engine_,
                                              static_cast<DaemonControl&>(*this))),
      started_at_(clock_->now()),
      ended_(*clock_) {}

Daemon::~Daemon() = default;

Status Daemon::start() {
  os::set_thread_name("ckptd-ctl");
  ::signal(SIGHUP, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  // A write beyond `ulimit -f` is then an error of that write.
  ::signal(SIGXFSZ, SIG_IGN);
  const auto descriptors = os::raise_limit(os::Limit::open_files);
  (void)os::raise_limit(os::Limit::locked_memory);

  log_info("libckpt {} starts, pid {}", CKPT_VERSION_STRING, ::getpid());
  for (const std::string& line : describe(options_)) log_info("option {}", line);
  log_info("memory budget {} of {} available, {} descriptors",
           arena::human_bytes(options_.memory_budget), arena::human_bytes(available_bytes()),
           descriptors ? descriptors->soft : 0);

  lines_.start();
  CKPT_POINT("start.listen.before");
  CKPT_CHECK(server_->start(directory_.socket()));
  CKPT_CHECK(write_ready());
  log_info("ready on {}", directory_.socket());
  CKPT_POINT("start.ready");
  return {};
}

Status Daemon::write_ready() const {
  Ready ready;
  CKPT_TRY(ready.process, os::identify_process(::getpid()));
  ready.version = CKPT_VERSION_STRING;
  ready.socket = directory_.socket();
  ready.memory_budget = options_.memory_budget;
  return os::replace_file(directory_.ready(), to_json(ready));
}

Status Daemon::run() {
  // Step 3.
  run_detached(context_.get_executor(), stay_reachable());
  run_detached(context_.get_executor(), end_on_signal());
  run_detached(context_.get_executor(), end_when_idle());
  context_.run();
  // Step 4.
  CKPT_POINT("stop.end");
  // In a place that another daemon has taken it is that one's.
  if (lock_.is_at(directory_.lock())) os::remove_file(directory_.ready());
  take_apart();
  log_info("ended");
  return result_.value_or(Status());
}

void Daemon::take_apart() {
  boost::system::error_code ignored;
  signals_.cancel(ignored);
  server_.reset();
  engine_.reset();
  // Every wait ends at once, and with it the remaining coroutines.
  clock_->close();
  context_.restart();
  context_.run_for(daemon_drain_time);
  if (context_.stopped()) return;
  // A file system that hangs must not keep the process: everything that can be flushed has been.
  log_warning("something is still in flight, and left behind");
  std::_Exit(result_.value_or(Status()) ? 0 : 1);
}

DetachedTask Daemon::end_on_signal() {
  const auto [error, signal] = co_await signals_.async_wait(asio::as_tuple(asio::use_awaitable));
  if (error) co_return;
  // A second signal ends the process at once, as people expect.
  ::signal(SIGINT, SIG_DFL);
  const std::string why = signal == SIGINT ? "SIGINT" : "SIGTERM";
  co_await end(why, options_.stop_deadline, true);
}

DetachedTask Daemon::end_when_idle() {
  const Duration limit = options_.idle_limit;
  const Duration look_every =
      std::clamp<Duration>(limit / 10, std::chrono::milliseconds(10), std::chrono::seconds(10));
  Time busy_at = clock_->now();
  while (!result_) {
    const Time next = clock_->after(look_every);
    auto slept = co_await sleep_until(*clock_, next);
    if (!slept) co_return;
    if (!server_->is_idle() || !engine_->is_idle()) busy_at = clock_->now();
    if (clock_->now() - busy_at < limit) continue;
    co_await end("idle limit reached", end_time, false);
  }
}

// A cleanup of old files may remove the socket, and the end of a login the whole directory. Without
// them nobody would find the memory.
DetachedTask Daemon::stay_reachable() {
  LogLimit complaint(60.0);
  while (!result_) {
    const Time next = clock_->after(reachable_interval);
    auto slept = co_await sleep_until(*clock_, next);
    if (!slept || result_) co_return;
    if (server_->is_reachable() && lock_.is_at(directory_.lock())) continue;
    const Status again = take_place_again();
    if (again) {
      log_warning("{} was removed; made again", directory_.socket());
    } else if (complaint.may_speak()) {
      const bool is_refused = again.error().cause() == std::errc::permission_denied;
      log_error("{} was removed, and nobody can reach this daemon; tried again: {}{}",
                directory_.socket(), again.error().message(),
                is_refused && !confined_.empty()
                    ? "; --confine-to must name the directory above for that, too"
                    : "");
    }
  }
}

// As at the start, the lock's holder makes the socket. While another daemon has the lock, this one
// serves only the trainers that it has, and takes the place over when it is free.
Status Daemon::take_place_again() {
  CKPT_CHECK(os::RuntimeDirectory::open(directory_.path()));
  if (!lock_.is_at(directory_.lock())) {
    auto lock = os::LockFile::acquire(directory_.lock());
    if (!lock) {
      if (lock.error().code() == Errc::unavailable) server_->withdraw();
      return fail(std::move(lock).error());
    }
    lock_ = std::move(*lock);
  }
  if (!server_->is_reachable()) CKPT_CHECK(server_->start_again());
  CKPT_CHECK(write_ready());
  if (options_.log_file.empty()) return {};
  if (const Status opened = Log::open_file(options_.log_file); !opened)
    log_warning("the log goes on where it was: {}", opened.error().message());
  return {};
}

DetachedTask Daemon::end(std::string why, Duration deadline, bool flush) {
  must_end_ = true;
  if (is_ending_) co_return;
  (void)co_await prepare_end(std::move(why), deadline, flush);
}

Task<void> Daemon::prepare_end(std::string why, Duration deadline, bool flush) {
  CKPT_ASSERT(!is_ending_);
  is_ending_ = true;
  CKPT_POINT("stop.begin");
  log_info("ends: {}{}", why, flush ? "; the steps that it holds are flushed first" : "");
  Status flushed;
  if (flush) {
    // A person is informed soon and may free space. Nobody answers a signal, so all its time is
    // used, unless the directory belongs to another daemon or run by now: that is logged at once.
    const std::uint32_t failures_max =
        must_end_ ? std::numeric_limits<std::uint32_t>::max() : stop_failures_max;
    auto done = co_await engine_->flush(deadline, failures_max);
    flushed = std::move(done);
  }
  if (!flushed) log_error("not all was flushed: {}", flushed.error().message());
  if (!flushed && !must_end_) {
    log_info("goes on");
    is_ending_ = false;
    ended_.notify_all();
    co_return fail(std::move(flushed).error());
  }
  held_ = engine_->held_json();
  result_.emplace(std::move(flushed));
  ended_.notify_all();
  run_detached(context_.get_executor(), take_leave());
  co_return Status();
}

DetachedTask Daemon::take_leave() {
  auto stopped = co_await engine_->stop(end_time);
  if (!stopped) log_warning("work is left behind: {}", stopped.error().message());
  // Pending answers are sent before their connections are closed.
  const Time answered = clock_->after(std::chrono::milliseconds(100));
  (void)co_await sleep_until(*clock_, answered);
  const Time last = clock_->after(end_time);
  auto closed = co_await server_->stop(last);
  if (!closed) log_warning("connections: {}", closed.error().message());
  context_.stop();
}

Task<std::string> Daemon::stop(Duration deadline, bool flush) {
  const Time last = clock_->after(deadline + end_time);
  if (!flush) {
    must_end_ = true;
    engine_->give_up_flush();  // An attempt before began it, and its person may have gone away.
  }
  // Another attempt is running, and may end the daemon for us.
  while (is_ending_ && !result_) {
    CKPT_CO_TRY(const bool was_woken, co_await ended_.wait_until(last));
    if (!was_woken) co_return fail(Errc::unavailable, "stop: not flushed in time");
  }
  if (!result_) {
    CKPT_CO_CHECK(co_await prepare_end("`ckpt stop`", deadline, flush));
  }
  co_return held_;  // It counts what was lost, if the flush did not store all.
}

std::string Daemon::status_json() const {
  auto json = nlohmann::ordered_json::parse(engine_->status_json(), nullptr, false);
  const auto up = std::chrono::duration_cast<std::chrono::seconds>(clock_->now() - started_at_);
  std::vector<std::string> confined_to;
  for (const os::ConfinedTo& named : confined_) confined_to.push_back(named.path);
  json["daemon"] = {{"pid", ::getpid()},
                    {"version", CKPT_VERSION_STRING},
                    {"runtime_dir", directory_.path()},
                    {"log_file", options_.log_file},
                    {"listen", options_.listen},
                    {"up_seconds", up.count()},
                    {"is_ending", is_ending_},
                    {"confined_to", confined_to}};
  return json.dump(2);
}

}  // namespace ckpt::daemon
