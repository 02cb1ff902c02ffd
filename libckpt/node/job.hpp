// Job: one training job on this node: its Slots, its trainers, its part in what all nodes agree.
//
// Whatever happens calls touch(); one update() then looks at the whole state: it grants Slots,
// reports, decides where this node coordinates, and obeys. Coroutines do long work, then touch().
//
//   job.cpp           life, touch, update
//   job_agreement.cpp reports, decrees
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
#include "node/held.hpp"
#include "node/peers.hpp"
#include "node/restore_runner.hpp"
#include "node/seen_cluster.hpp"
#include "node/sessions.hpp"

namespace ckpt::node {

class Job final : public JobLife, public std::enable_shared_from_this<Job> {
 public:
  Job(SharedContext context, const AttachRequest& first);

  // --- life (job.cpp, job_end.cpp) ---
  Task<void> open(bool is_first);  // Of all nodes. Reads the directory; heartbeats begin. Once.
  Held held() const;
  void want_flush(bool is_wanted);
  bool is_flushed(bool wait_for_commits) const { return captures_.is_flushed(wait_for_commits); }
  Task<void> flush(Time deadline, std::uint32_t failures_max);  // As Engine::flush.
  Task<void> stop(Time deadline);
  bool is_closing() const { return sessions_.is_closing(); }
  bool is_finished() const;  // Ended, or without a trainer for the idle limit, and stored.
  void free_memory(const std::string& why);
  nlohmann::json status() const;  // This and the next: job_status.cpp.
  nlohmann::json recover() const;
  void touch() override;
  Signal& changed() override { return changed_; }
  std::shared_ptr<void> hold() override;
  Work begin_work() override;

  // --- trainers ---
  Status check_attach(const AttachRequest& request) const {
    return sessions_.check_attach(request);
  }
  Result<Attached> attach(const AttachRequest& request, SessionEvents& events);
  Status call(SessionId id, control::Call call);  // As Engine::call.
  void detach(SessionId id) { sessions_.detach(id); }
  bool has_trainer() const { return ranks_.have_trainer(); }

  const JobFacts& facts() const { return facts_; }
  std::uint64_t slot_bytes() const { return slots_.bytes(); }
  // A connection that a peer opened and authenticated.
  void admit(std::shared_ptr<wire::Connection> connection, wire::PeerIdentity identity);

 private:
  // job.cpp, job_end.cpp
  asio::awaitable<void> heartbeat();
  void update();
  void check_invariants() const;
  void note_idle();
  Status carry_out(Caller by, control::AskStatus it);
  void adopt_shape(const AttachRequest& request);
  std::string waiting() const;  // This and the next: with what this node alone knows.
  std::string degraded() const;

  // job_agreement.cpp
  void learn_history(const format::Timelines& stored);
  void build_report();
  const agree::ClusterView& view() const;
  void coordinate();
  asio::awaitable<void> announce();
  Task<void> claim_timeline(format::Start start, Time deadline);
  void follow();
  void obey(const format::Decree& decree);

  const SharedContext held_context_;  // A coroutine may hold a dropped job beyond the engine.
  JobFacts facts_;
  StopGate gate_;
  Signal changed_, stopped_;  // The second is only closed.
  SlotTable slots_;
  GivingWay giving_way_;
  Ranks ranks_;
  Captures captures_;
  Peers peers_;
  Replication replication_;
  JobStorage storage_;
  Sessions sessions_;
  RestoreRunner restores_;
  bool is_update_posted_ = false, is_opened_ = false, is_expired_ = false;
  Time opened_at_{};
  // This and all that follows: agreement.
  mutable SeenCluster seen_;  // By view(), as it was then.
  format::NodeReport report_;
  agree::Coordinator coordinator_;
  std::optional<std::uint64_t> start_announced_;        // Its history was stored, or could not be.
  std::vector<format::RestoreCount> counts_announced_;  // As stored, or as they should have been.
  bool was_coordinator_ = false, is_announcing_ = false, is_flush_wanted_ = false;
};

}  // namespace ckpt::node
