// DaemonStart: finds the daemon of the runtime directory, and starts one when none runs.
//
//   1. Connect to the socket. If a daemon listens: done.
//   2. Take the start lock, without waiting: its holder alone may start a daemon.
//   3. Start ckptd, unless the daemon's own lock is held: then one is coming up already.
//   4. Repeat step 1, with back-off, until the deadline, or until the daemon that we started ends.
//
// Threads: those of the clock's executor, but for the constructor: it copies the environment, for
//          every daemon that it starts, and runs on the trainer's thread.
#pragma once

#include <ckpt/options.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "client/restart_limit.hpp"
#include "os/environment_copy.hpp"
#include "os/file_system.hpp"
#include "os/local_socket.hpp"
#include "os/other_daemons.hpp"
#include "os/runtime_directory.hpp"
#include "os/spawn.hpp"

namespace ckpt::client {

// options.daemon_path, else LIBCKPT_DAEMON_PATH, else ckptd beside the library or the program, or
// in their ../bin, else by PATH.
std::string find_daemon(const Options& options, const os::EnvironmentCopy& environment);
// The address on which a started daemon listens for peers; empty: the list of nodes says it.
std::string listen_address(const Options& options);
// Why a daemon may leave nothing in a log there: "; the file system of /run/ckpt is full: ...".
// Empty: there is room, or it is not known.
std::string why_no_log(const std::string& directory, const Result<os::Space>& space);
// For a trainer that has started a daemon in the user's usual place: those that it did not find.
// Empty: there are none.
std::string other_daemons_text(const std::string& place,
                               const std::vector<os::OtherDaemon>& others);
os::SpawnOptions daemon_command(const Options& options, const os::RuntimeDirectory& directory,
                                const os::EnvironmentCopy& environment);

class DaemonStart {
 public:
  DaemonStart(Clock& clock, Options options, os::RuntimeDirectory directory)
      : clock_(clock),
        options_(std::move(options)),
        directory_(std::move(directory)),
        environment_(os::EnvironmentCopy::of_process()) {}

  // Errors: unavailable (deadline), io (it ended at once, with the last line that it wrote to its
  // log), not_found (no ckptd to start), and those of connect_local.
  Task<os::LocalConnection> connect(Time deadline);

 private:
  Status start_if_none();
  void warn_of_others() const;
  Error no_answer() const;  // Names the likely reason.
  // The last line of its log; if we started a daemon, the last line since then.
  std::string end_of_log() const;
  // The error if the daemon that we started has ended without ever answering.
  std::optional<Error> early_end();

  Clock& clock_;
  Options options_;
  os::RuntimeDirectory directory_;
  const os::EnvironmentCopy environment_;
  RestartLimit limit_;
  std::optional<Time> logged_pause_;    // The end of the pause between starts, as last logged.
  std::optional<os::Spawned> spawned_;  // Kept until it ended, to take its exit status.
  std::uint64_t log_bytes_before_ = 0;  // The size of the log before our daemon.
  std::optional<os::LockFile> start_lock_;
};

}  // namespace ckpt::client
