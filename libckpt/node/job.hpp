// Job: one training job on this node: its Slots, its trainers, its part in what all nodes agree.
//
// Whatever happens calls touch(); one update() then looks at the whole state: it grants Slots,
// reports, decides where this node coordinates, and obeys. Coroutines do long work, then touch().
//
//   job.cpp           life, touch, update        job_sessions.cpp  trainers come, ask and go
//   job_slots.cpp     begin, filled, grants      job_agreement.cpp reports, decrees
//   job_start.cpp     a shard for a restore      job_storage.hpp   flush, publish, catalog
// Also job_end, job_view. Threads: the engine's. Lifetime: shared by its coroutines until stop().
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agree/coordinator.hpp"
#include "base/signal.hpp"
#include "base/stop_gate.hpp"
#include "format/run_files.hpp"
#include "node/context.hpp"
#include "node/giving_way.hpp"
#include "node/heard_nodes.hpp"
#include "node/held.hpp"
#include "node/idle_watch.hpp"
#include "node/seen_cluster.hpp"
#include "node/session.hpp"
#include "node/slot_table.hpp"

namespace ckpt::node {

class Peers;
class Replication;
class JobStorage;

class Job : public std::enable_shared_from_this<Job> {
 public:
  static std::shared_ptr<Job> make(SharedContext context, const AttachRequest& first);
  Job(SharedContext context, const AttachRequest& first);
  ~Job();

  // --- life (job.cpp, job_end.cpp) ---
  Task<void> open(bool is_first);  // Of all nodes. Reads the directory; heartbeats begin. Once.
  Held held() const;
  void want_flush(bool is_wanted);
  bool is_flushed(bool wait_for_commits) const;
  Task<void> flush(Time deadline, std::uint32_t failures_max);  // As Engine::flush.
  Task<void> stop(Time deadline);
  bool is_closing() const;   // All trainers that came have closed, or none got in.
  bool is_finished() const;  // Ended, or without a trainer for the idle limit, and stored.
  void free_memory(const std::string& why);
  nlohmann::json status() const;  // This and the next: job_status.cpp.
  nlohmann::json recover() const;
  void touch();                           // Something changed: look at everything, soon.
  Signal& changed() { return changed_; }  // After each update.

  // --- trainers (job_sessions.cpp) ---
  Status check_attach(const AttachRequest& request) const;
  Result<Attached> attach(const AttachRequest& request, SessionEvents& events);
  Status call(SessionId id, control::Call call);  // As Engine::call.
  void detach(SessionId id);
  bool has_trainer() const;

  // --- other nodes (job_agreement.cpp); called by Peers ---
  void report_received(format::NodeReport report);
  void decree_received(format::Decree decree);
  void peer_stated(const std::string& node, std::uint64_t boot, std::uint64_t number);
  const format::NodeReport& report() const { return report_; }
  const format::Decree& decree() const { return decree_; }
  bool is_coordinator() const;
  std::string coordinator() const;  // The lowest live node of the list.

  // --- what parts of the job ask one another ---
  const agree::JobShape& shape() const { return shape_; }
  const Digest& members() const { return members_; }
  const std::string& node() const { return node_; }
  std::uint64_t boot() const { return boot_; }  // Of this job: a new one whenever it is opened.
  const std::string& secret() const { return secret_; }
  const std::string& directory() const { return directory_; }
  const agree::History& history() const { return history_; }
  void learn_history(const format::Timelines& stored);
  const std::optional<format::StepId>& committed() const { return committed_; }
  const std::optional<format::StepId>& durable() const { return durable_; }
  SlotTable& slots() { return slots_; }
  Peers& peers() { return *peers_; }
  Replication& replication() { return *replication_; }
  EngineContext& context() { return context_; }
  GivingWay& giving_way() { return giving_way_; }

 private:
  // job.cpp, job_end.cpp
  asio::awaitable<void> heartbeat();
  void update();
  void check_invariants() const;
  void note_idle();
  Status carry_out(Caller by, control::SetLayout it);  // These: as Engine::call.
  Status carry_out(Caller by, control::Begin it);
  Status carry_out(Caller by, control::Filled it);
  Status carry_out(Caller by, control::Abandon it);
  Status carry_out(Caller by, control::Arrived it);
  Status carry_out(Caller by, control::Skipped it);
  Status carry_out(Caller by, control::StepTime it);
  Status carry_out(Caller by, control::StartFresh it);
  Status carry_out(Caller by, control::AskRestore it);
  Status carry_out(Caller by, control::RestoreResult it);
  Status carry_out(Caller by, control::RestoredOk it);
  Status carry_out(Caller by, control::Flush it);
  Status carry_out(Caller by, control::AskStatus it);
  Status carry_out(Caller by, control::Close it);
  // job_sessions.cpp
  void adopt_shape(const AttachRequest& request);
  Session* find(SessionId id, Rank** rank = nullptr);
  Result<Caller> active(SessionId id, std::string_view what);
  void fence_all(std::int64_t attaching_process);
  void fence(Rank& rank, std::unique_ptr<Session> older);
  bool refuse_without_peers(Session& session, const char* what);
  Settled settled_of(const Rank& rank) const;
  void settle_closing(Rank& rank);
  void tell_levels(Session& session);
  bool is_flush_awaited(const Session& session) const;
  std::string waiting() const;  // This and the next: with what this node alone knows.
  std::string degraded() const;
  std::string waiting_of(const Rank& rank) const;
  void tell_notice(const Rank& rank);

  // job_slots.cpp
  void prepare_slots(Rank& rank);
  asio::awaitable<void> make_slots(std::uint32_t rank, std::uint32_t count, std::uint64_t bytes);
  void grant_slots(Rank& rank);
  void revoke_grants(Rank& rank);
  void abandon_fillings(std::uint32_t rank, SessionId filler);
  Status begin(Caller by, OwnSlot& own, Step step);
  Status fill(Caller by, OwnSlot& own, control::Filled filled);
  OwnSlot* slot_of(Caller by, std::uint32_t slot, std::uint64_t generation);  // Null: replaced.
  Result<std::shared_ptr<const format::ShardRecord>> record_of(const Session& session,
                                                               format::ShardId id,
                                                               control::Filled& filled);
  asio::awaitable<void> checksum_and_seal(SessionId id, std::shared_ptr<arena::Slot> slot,
                                          format::ShardRecord record, std::vector<Crc32> taken);
  void seal(Session* session, arena::Slot& slot, std::shared_ptr<const format::ShardRecord> record);
  void retire_useless();

  // job_agreement.cpp
  void build_report();
  const agree::ClusterView& view() const;
  void coordinate();
  asio::awaitable<void> announce();
  Task<void> claim_timeline(format::Start start, Time deadline);
  void follow();
  void obey(const format::Decree& decree);
  void obey_start(Rank& rank, const format::Start& start);

  // job_start.cpp
  asio::awaitable<void> bring_shard(std::uint32_t rank, SessionId id, format::Start start);
  Task<void> offer_from_any_source(std::uint32_t rank, SessionId id, format::Start start);
  Task<void> offer(std::uint32_t rank, SessionId id, format::Start start,
                   std::shared_ptr<arena::Slot> slot, RestoreSource source, std::string name);
  using SlotFilled = std::shared_ptr<arena::Slot>;
  Result<SlotFilled> slot_for_filling(const format::ShardId& id, std::uint64_t bytes);
  BytesVerified tell_filling(SessionId id, std::string source_name, std::uint64_t bytes_total);
  Task<SlotFilled> fill_from_here(format::ShardId id, Digest digest, SessionId for_whom);
  Task<SlotFilled> fill_from_peer(format::ShardId id, Digest digest, std::string peer,
                                  SessionId for_whom);
  Task<SlotFilled> fill_from_storage(format::ShardId id, Digest digest, SessionId for_whom);

  const SharedContext held_context_;  // A coroutine may hold a dropped job beyond the engine.
  EngineContext& context_;
  const std::uint64_t boot_;
  agree::JobShape shape_;
  Digest members_;  // agree::members_digest(shape_).
  std::string node_, directory_, secret_;
  SlotTable slots_;
  GivingWay giving_way_;
  std::map<std::uint32_t, Rank> ranks_;  // Those whose trainers were attached here.
  std::uint32_t own_slot_count_ = 2;
  std::unique_ptr<Peers> peers_;
  std::unique_ptr<Replication> replication_;
  std::unique_ptr<JobStorage> storage_;
  StopGate gate_;
  Signal changed_, stopped_;  // The second is only closed.
  bool is_update_posted_ = false, is_opened_ = false, is_expired_ = false;
  Time opened_at_{};
  std::optional<Time> ended_at_;
  IdleWatch idle_;
  HeardNodes heard_;          // This and all that follows: agreement.
  mutable SeenCluster seen_;  // By view(), as it was then.
  format::NodeReport report_;
  format::Decree decree_;  // Newest obeyed.
  agree::Coordinator coordinator_;
  std::optional<std::uint64_t> start_announced_;        // Its history was stored, or could not be.
  std::vector<format::RestoreCount> counts_announced_;  // As stored, or as they should have been.
  bool was_coordinator_ = false, is_announcing_ = false, is_flush_wanted_ = false;
  agree::History history_;
  std::vector<format::RestoreCount> restore_counts_;
  std::optional<format::StepId> committed_, durable_;
};

}  // namespace ckpt::node
