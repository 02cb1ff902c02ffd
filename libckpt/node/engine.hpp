// Engine: one node's part of libckpt: it owns the Slots, replicates, flushes, agrees and recovers.
//
// The daemon runs one, the embedded mode runs one inside the trainer, and the simulator runs one
// per simulated node: the same coroutines over other seams. A trainer is a Session: it calls by the
// messages of wire/control_calls.hpp, and hears those of wire/control_events.hpp.
//
// Threads:   one executor; every call and every SessionEvents callback happens on it.
// Lifetime:  stop() first; the destructor asserts that nothing is in flight unless the executor's
//            context was destroyed before it (a simulated kill).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "node/engine_options.hpp"
#include "node/session_events.hpp"

namespace ckpt::node {

class LentStep;

// Empty where no file is named. It blocks while it reads, and a file system may hang: do not call
// it on the engine's thread. Errors: those of wire::Secret::read_file.
Result<std::string> read_secret(const std::string& secret_file);

class Engine {
 public:
  Engine(asio::any_io_executor executor, Seams seams, EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Errors: invalid_argument (another job's directory, a rank beyond the world, a node not listed,
  //         a lower incarnation than seen), io (the directory). `secret_file` is not read here.
  // An older session of the same job and rank is fenced. `events` must outlive the session.
  Task<Attached> attach(AttachRequest request, SessionEvents& events);
  // Whether a job that is open here would refuse it; errors: those of attach.
  Status check_attach(const AttachRequest& request) const;
  // A call for a Slot that was replaced meanwhile is not carried out: its step is skipped.
  // Errors: not_found (no such session), unavailable (it is fenced), invalid_argument (it may not
  // call so now), and those of each call.
  Status call(SessionId session, control::Call call);
  // The trainer is proven dead, or its process let go of the memory: fillings are abandoned, what
  // is sealed stays. Its Slots may be given to the next session of the rank.
  void detach(SessionId session);

  // Looks what storage holds, so that the two below promise no step that is not there any more.
  // Places that do not answer by the deadline are named. Errors: cancelled.
  Task<void> look_at_storage(Time deadline);
  // For the command line. The text is JSON (docs/protocol.md, "Status").
  std::string status_json() const;
  std::string recover_json(const std::string& job) const;  // Why each step was chosen or rejected.
  // A step in memory, for a tool to read; none: the newest. Errors: not_found (no such job here),
  // and those of LentStep::lend.
  Result<std::shared_ptr<LentStep>> lend(const std::string& job, std::optional<Step> step);
  Status drop(const std::string& job);  // Errors: not_found, unavailable (in use).
  bool is_idle() const;                 // No job holds memory, no trainer.

  // Before the end: no more Slots are granted, and what is captured is brought to storage, as far
  // as it has a directory and all its ranks; then captures are refused. Errors: unavailable (the
  // deadline), io (`failures_max` attempts of a job failed); all then goes on as before.
  Task<void> flush(Duration deadline, std::uint32_t failures_max);
  void give_up_flush();  // A running flush fails now.
  // Each job's state in memory and on storage, as JSON (docs/protocol.md, "Stop").
  std::string held_json() const;
  // Ends all work. Errors: unavailable (the deadline).
  Task<void> stop(Duration deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ckpt::node
