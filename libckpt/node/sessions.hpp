// Sessions: the trainers of one job on this node come, ask and go.
//
//   attach -> set_layout -> ask_restore or start_fresh -> (begin, filled)* -> close -> detach
//
// A second session of a rank fences the first. It gets the rank's Slots only after detach() of the
// first, which is the proof that its process can no longer write into them.
//
// Threads: the engine's. Lifetime: the Job's.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "node/captures.hpp"
#include "node/idle_watch.hpp"
#include "node/job_storage.hpp"

namespace ckpt::node {

class Sessions {
 public:
  Sessions(const JobFacts& facts, JobLife& life, Ranks& ranks, Captures& captures,
           JobStorage& storage, GivingWay& giving_way);

  // Errors: as Engine::attach, before anything changes.
  Status check(const AttachRequest& request) const;
  Attached attach(const AttachRequest& request, SessionEvents& events);
  // A newer list of nodes has come with this trainer: those of the older one, but for the process's
  // own and for its rank, whose place it takes.
  void fence_all(const AttachRequest& newer);
  // Another world begins: what is left of trainers that closed and went speaks of the one before.
  void forget_gone();
  void detach(SessionId id);
  bool are_closing() const;  // All trainers that came have closed, or none got in.
  IdleWatch& idle() { return idle_; }
  const IdleWatch& idle() const { return idle_; }

  // As Engine::call.
  Status carry_out(Caller by, control::StepTime it);
  Status carry_out(Caller by, control::Passed it);
  Status carry_out(Caller by, control::StartFresh it);
  Status carry_out(Caller by, control::AskRestore it);
  Status carry_out(Caller by, control::RestoreResult it);
  Status carry_out(Caller by, control::RestoredOk it);
  Status carry_out(Caller by, control::Flush it);
  Status carry_out(Caller by, control::Close it);

  // For a session with a trainer, which hears of the end of its Start.
  void begin_training(Rank& rank, const format::Start& start);
  void miss_start(Rank& rank, const format::Start& start);
  // Ends a close that is done or late. `degraded` says what else is wrong with the job.
  void settle_closing(const Rank& rank, const std::function<std::string()>& degraded);
  bool is_flush_awaited() const;  // By a trainer.
  void send_levels(Session& session);
  void send_dropped(const std::vector<format::StepId>& steps);
  // `of_job` is for those whose start waits; the rank may wait for something of its own.
  void send_notice(const Rank& rank, control::Notice of_job) const;

 private:
  Unexpected fail_close(const Rank& rank, const std::string& why) const;
  // Returns the session that another process has, and which is no more the rank's; null: none.
  std::unique_ptr<Session> remove_session(Rank& rank, std::int64_t attaching_process);
  void fence(Rank& rank, std::unique_ptr<Session> older, std::string why);
  std::string reason_of(const format::Start& start) const;  // For people.
  bool refuse_without_peers(Session& session, const char* what);
  bool is_flush_awaited(const Session& session) const;

  const JobFacts& facts_;
  JobLife& life_;
  Ranks& ranks_;
  Captures& captures_;
  JobStorage& storage_;
  GivingWay& giving_way_;
  IdleWatch idle_;
};

}  // namespace ckpt::node
