// Daemon: assembles the parts of ckptd, runs them on one thread, and takes them apart again.
//
//   starting --ready--> serving --SIGTERM, SIGINT, `ckpt stop`, idle--> flushing --> gone
//                          ^---- `ckpt stop` could not flush ---------------'
//
// Lifetime: one in a process, for all of its life: run() returns when everything has ended.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <memory>
#include <optional>

#include "arena/shared_slot_memory.hpp"
#include "daemon/control_server.hpp"
#include "daemon/daemon_options.hpp"
#include "daemon/line_thread.hpp"
#include "os/confined_file_system.hpp"
#include "os/hash_threads.hpp"
#include "wire/tcp_network.hpp"

namespace ckpt::daemon {

class Daemon final : private DaemonControl {
 public:
  // With --confine-to it restricts this process for good.
  // Errors: unavailable (a daemon runs in this directory already), invalid_argument, io, and those
  // of confine().
  static Result<std::unique_ptr<Daemon>> open(DaemonOptions options);
  ~Daemon() override;

  // Runs until the daemon was asked to end. Errors: those of the flush.
  Status run();

 private:
  using Confined = std::vector<os::ConfinedTo>;
  Daemon(DaemonOptions options, Confined confined, os::RuntimeDirectory directory,
         os::LockFile lock);

  Status start();
  void take_apart();
  std::string status_json() const override;
  Task<std::string> stop(Duration deadline, bool flush) override;

  DetachedTask end_on_signal();
  DetachedTask end_when_idle();
  DetachedTask stay_reachable();
  // Errors: unavailable (another daemon has the place), and those of open().
  Status take_place_again();
  Status write_ready() const;
  // Flushes, and ends everything, whether the flush succeeded or not.
  DetachedTask end(std::string why, Duration deadline, bool flush);
  // The flush before the end. Fails only if the daemon is to keep running.
  Task<void> prepare_end(std::string why, Duration deadline, bool flush);
  DetachedTask take_leave();

  DaemonOptions options_;
  Confined confined_;  // Empty: it may change files anywhere.
  os::RuntimeDirectory directory_;
  os::LockFile lock_;

  asio::io_context context_;
  asio::signal_set signals_;
  LineThread lines_;  // Posts to the context: ends before it.
  std::unique_ptr<Clock> clock_;
  arena::SharedMemorySource memory_;
  std::unique_ptr<os::FileSystem> files_;
  std::unique_ptr<os::HashThreads> hash_threads_;
  wire::TcpNetwork network_;
  std::unique_ptr<node::Engine> engine_;
  std::unique_ptr<ControlServer> server_;
  Time started_at_;
  Signal ended_;
  bool is_ending_ = false;        // Until it has ended, or a failed flush lets it continue.
  bool must_end_ = false;         // Nobody is there to decide otherwise.
  std::optional<Status> result_;  // The flush's result, once the end is certain.
  std::string held_;              // JSON: the steps then on storage, and those lost.
};

}  // namespace ckpt::daemon
