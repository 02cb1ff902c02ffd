// ControlServer: serves the daemon's socket: trainers, and the command line.
//
//   accept -> hello -> attach -> a trainer's calls, until the stream ends -> its process ends
//                   -> status, recover, stop, drop -> one answer each
//                   -> a step in memory, its records and Chunks
//
// A session is detached from the engine only when its process is proven gone, or said goodbye. If
// an older trainer of the same rank is stopped (SIGSTOP, Ctrl-Z), it is killed before the new one
// attaches, since it will not exit by itself. A running one is fenced and keeps its Slots, also
// while a debugger or a profiler looks at it.
//
// Threads:  the engine's.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "base/stop_gate.hpp"
#include "daemon/core_share.hpp"
#include "daemon/step_lender.hpp"
#include "daemon/trainer_session.hpp"
#include "os/disk_threads.hpp"
#include "os/runtime_directory.hpp"

namespace ckpt::daemon {

// The commands to the daemon as a whole.
class DaemonControl {
 public:
  virtual ~DaemonControl() = default;
  virtual std::string status_json() const = 0;
  // Flushes, and ends the daemon. Then returns, as JSON, what each job has on storage and what was
  // lost. Errors: those of the flush; the daemon then keeps running.
  virtual Task<std::string> stop(Duration deadline, bool flush) = 0;
};

class ControlServer {
 public:
  // More than the ranks of one node and their tools ever need.
  static constexpr int connections_max = 1024;

  ControlServer(const asio::any_io_executor& executor, Clock& clock, node::Engine& engine,
                DaemonControl& control);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Errors: unavailable (somebody listens there), invalid_argument, io.
  Status start(const std::string& socket);
  // False: the socket was removed or replaced. start_again() makes a new one; its errors are those
  // of start().
  bool is_reachable() const { return listener_->is_reachable(); }
  Status start_again();
  // Stops listening until start_again(): the place belongs to another daemon.
  void withdraw() { listener_->close(); }
  Task<void> stop(Time deadline);
  // True if nobody is connected and no trainer's process is awaited.
  bool is_idle() const { return connections_.in_flight() == 0 && sessions_.empty(); }

 private:
  using SharedConnection = std::shared_ptr<os::LocalConnection>;
  using SharedSession = std::shared_ptr<TrainerSession>;

  DetachedTask accept_all();
  DetachedTask serve(SharedConnection connection);
  Task<void> greet(SharedConnection connection);
  Task<void> serve_trainer(SharedConnection connection, wire::control::Attach attach);
  Status carry_out(const TrainerSession& session, wire::control::Message message);
  Task<void> answer(SharedConnection connection, wire::control::Message question);
  Task<void> lend(SharedConnection connection, std::shared_ptr<StepLender> lender,
                  wire::control::Message question);
  Task<wire::control::Answer> answer_to(wire::control::Message question);
  Task<SharedSession> attach(SharedConnection connection, wire::control::Attach attach);
  // Returns the pid of one that it killed, or 0.
  Task<pid_t> kill_stopped(TrainerSession::Identity newcomer);
  // Sends for a session, or on a connection that has none yet.
  static Task<void> send(SharedConnection connection, wire::control::Message message,
                         Time deadline);
  Task<wire::control::Message> receive(SharedConnection connection, Time deadline);
  void detach(const SharedSession& session, const char* why);
  void share_cores();

  asio::any_io_executor executor_;
  Clock& clock_;
  node::Engine& engine_;
  DaemonControl& control_;
  std::string socket_;
  std::optional<os::LocalListener> listener_;
  std::list<SharedSession> sessions_;  // Their processes may still have Slots mapped.
  std::list<SharedConnection> open_;   // To be closed at the end.
  // A secret's file may lie on a file system that hangs. Only attaching trainers wait for it.
  os::DiskThreads secret_files_;
  CoreShare cores_;
  Signal detached_;
  StopGate connections_;  // Counts connections.
  StopGate gate_;
};

}  // namespace ckpt::daemon
