// TrainerSession: one trainer at the daemon: the engine's events become messages to it, and its
// process is watched.
//
// It lives from attach until the trainer's process is proven gone, or has said goodbye: the engine
// may call until then, and the Slots that the process has mapped go to nobody else. The end of the
// stream proves nothing: a forked worker keeps it open, and a lost connection leaves the mappings.
//
// Threads:  the engine's.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/signal.hpp"
#include "node/engine.hpp"
#include "os/local_socket.hpp"
#include "os/process.hpp"

namespace ckpt::daemon {

class TrainerSession final : public node::SessionEvents {
 public:
  // A trainer that does not read costs us this many messages; then its connection is closed.
  static constexpr std::size_t outgoing_max = 1024;

  struct Identity {
    std::string job;
    std::uint32_t rank = 0;
    pid_t pid = 0;
  };

  TrainerSession(Clock& clock, std::shared_ptr<os::LocalConnection> connection, Identity identity,
                 os::Fd process);

  const Identity& identity() const { return identity_; }
  const os::Fd& process() const { return process_; }
  std::string name() const;  // "job=gpt2 rank=3 pid=4711"

  // The answer to attach goes out before what the engine said meanwhile.
  void attached(const node::Attached& attached);
  const std::optional<node::SessionId>& session() const { return session_; }

  // Sends what the events queue, until the connection ends.
  static DetachedTask send_all(std::shared_ptr<TrainerSession> self);
  void close_connection();
  // Calls `gone` once when the process is gone, and not after the session.
  Status watch(const asio::any_io_executor& executor, std::function<void()> gone);

  void slots_ready(std::vector<node::ReadySlot> slots) override;
  void tell(wire::control::Event event) override;

 private:
  void enqueue(wire::control::Message message, std::vector<os::Fd> descriptors = {});
  Status enqueue_segments(std::uint32_t slot, const node::ReadySlot& ready);

  Clock& clock_;
  std::shared_ptr<os::LocalConnection> connection_;
  Identity identity_;
  os::Fd process_;
  std::optional<os::ProcessWatch> watch_;
  std::optional<node::SessionId> session_;  // Once attached.

  std::deque<os::LocalMessage> outgoing_;
  Signal outgoing_changed_;
  std::vector<std::uint64_t> sent_generations_;  // By Slot: the one whose segments were sent.
  bool is_closed_ = false;
  bool is_mute_ = false;  // The other side is gone, and is heard to the end.
};

}  // namespace ckpt::daemon
