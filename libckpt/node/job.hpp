// Job: one training job on this node. It puts the parts together, and says when each has its turn.
//
// Every event calls touch(). One update() then looks at the whole state: it collects what this
// node has, decides where this node coordinates, and obeys. Coroutines do long work, then touch().
//
// Each part gets JobFacts (const for all but Agreement), JobLife and the parts that it needs, and
// knows nothing of the Job. docs/ARCHITECTURE.md draws them.
//
//   job.cpp  attach, calls, update      job_end.cpp  closed, idle, flushed      job_status.cpp
//
// Threads: the engine's. Lifetime: shared by its coroutines until stop().
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "node/agreement.hpp"
#include "node/healing.hpp"
#include "node/last_look.hpp"
#include "node/lent_step.hpp"
#include "node/restore_runner.hpp"
#include "node/storage_look.hpp"
#include "node/unasked_tensors.hpp"

namespace ckpt::node {

// StorageStanding: a job's newest step on storage, and the one that would be lost with this node's
// memory.
struct StorageStanding {
  std::string job;
  std::string directory;  // Empty: memory only.
  std::optional<format::StepId> durable;
  std::optional<format::StepId> lost;  // The newest that is in memory and not on storage.
  bool has_trainer = false;
  std::string second_directory;  // Empty: there is none, or another node copies there.
  std::optional<format::StepId> second_newest;  // None: nothing is there, or known to be.
};

class Job final : public JobLife, public std::enable_shared_from_this<Job> {
 public:
  Job(SharedContext context, const AttachRequest& first);
  // Call once. Reads the directory, and begins heartbeats. `is_first`: this node is the first of
  // the job's list.
  Task<void> open(bool is_first);
  Task<void> stop(Time deadline);

  // --- trainers ---
  Status check_attach(const AttachRequest& request) const { return sessions_.check(request); }
  Result<Attached> attach(const AttachRequest& request, SessionEvents& events);
  Status call(SessionId id, control::Call call);  // As Engine::call.
  void detach(SessionId id) { sessions_.detach(id); }
  bool has_trainer() const { return ranks_.have_trainer(); }

  // --- the end (job_end.cpp) ---
  StorageStanding storage_standing() const;
  void want_flush(bool is_wanted);
  // The newest committed step is on storage now, or cannot be brought there from here.
  bool is_flushed(bool wait_for_commits) const;
  Task<void> flush(Time deadline, std::uint32_t failures_max);  // As Engine::flush.
  bool is_closing() const { return sessions_.are_closing(); }
  bool is_copying_last() const;  // Its last step goes to its second place.
  bool is_finished() const;      // Ended, or without a trainer for the idle limit, and stored.
  void free_memory(const std::string& why);

  // --- what it looks like from outside ---
  const JobFacts& facts() const { return facts_; }
  std::uint64_t slot_bytes() const { return slots_.bytes(); }
  void note_left(const LeftDirectory& left);  // By a job of its name, at this engine.
  // A look at storage, for the questions that follow at once. False: not by this node, which does
  // not see the whole job.
  bool begin_look();
  Task<void> wait_for_look(Time deadline) { return look_.wait(deadline); }
  nlohmann::json status() const;
  nlohmann::json recover() const;
  Result<std::shared_ptr<LentStep>> lend(std::optional<Step> step);  // As Engine::lend.
  // A connection that a peer opened and authenticated.
  void admit(std::shared_ptr<wire::Connection> connection, wire::PeerIdentity identity);

  // --- JobLife ---
  void touch() override;
  Signal& changed() override { return changed_; }
  std::shared_ptr<void> hold() override { return shared_from_this(); }
  WorkPass begin_work() override { return {shared_from_this(), gate_.enter()}; }

 private:
  void adopt_shape(const AttachRequest& request);
  Status carry_out(Caller by, control::AskStatus it);
  asio::awaitable<void> heartbeat();
  void update();
  void note_idle();
  void serve_trainers();
  void build_report();
  void obey();
  void send_notices();
  void give_way();
  HeldShards::Parts held_parts();
  UnsavedWatch::Steps steps_to_compare();
  void look_for_missing_pieces();
  std::optional<CoverageCheck::HeldStep> describe_held(format::StepId at);
  bool is_held_here(format::StepId at) const;
  bool has_idle_flush(Time now);
  void check_invariants() const;
  std::string waiting() const;  // This and the next: with what this node alone knows.
  std::string degraded() const;
  agree::ClusterView view_with(const StorageSeen& seen) const;
  std::string trouble_seen(const StorageSeen& seen) const;

  const SharedContext held_context_;  // A coroutine may hold a dropped job beyond the engine.
  JobFacts facts_;
  StopGate gate_;
  Signal changed_, stopped_;  // The second is only closed.
  SlotTable slots_;
  Ranks ranks_;
  GivingWay giving_way_;
  Peers peers_;
  Replication replication_;
  JobStorage storage_;
  StorageLook look_;
  Healing healing_;
  OldWorld old_world_;
  Captures captures_;
  Sessions sessions_;
  RestoreRunner restores_;
  Agreement agreement_;
  LastLook last_look_;
  UnsavedWatch unsaved_;
  std::vector<std::weak_ptr<LentStep>> lent_;
  bool is_update_posted_ = false, is_opened_ = false;
  bool is_expired_ = false, is_flush_wanted_ = false;
  Time flush_moved_at_{};  // A flush before the end was under way then, or a last capture.
};

}  // namespace ckpt::node
