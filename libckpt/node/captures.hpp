// Captures: a granted Slot is begun, filled by the trainer, sealed here, and freed when useless.
//
// While the process of a fenced session may still be alive, nobody writes into the rank's Slots:
// it has them mapped, and a mapping cannot be revoked. A Slot that a GPU was filling rests even
// after that process has died, since its copies may go on.
//
// Threads: the engine's. Lifetime: the Job's; its coroutines hold the Job.
#pragma once

#include <memory>
#include <vector>

#include "node/early_checksums.hpp"
#include "node/job_facts.hpp"
#include "node/job_life.hpp"
#include "node/old_world.hpp"
#include "node/ranks.hpp"
#include "node/slot_table.hpp"

namespace ckpt::node {

// Settled: how far the captures of a rank are.
struct Settled {
  bool is_filled = true;     // None is under way.
  bool is_committed = true;  // All captures are committed or given up.
};

class Captures {
 public:
  Captures(const JobFacts& facts, JobLife& life, Ranks& ranks, SlotTable& slots,
           OldWorld& old_world)
      : facts_(facts), life_(life), ranks_(ranks), slots_(slots), old_world_(old_world) {}

  void set_slot_count(std::uint32_t count) { slot_count_ = count; }  // For each rank.
  // The daemon's end waits for a flush, and none is under way: trainers may capture meanwhile.
  void set_flush_idle(bool is_idle) { is_flush_idle_ = is_idle; }
  void prepare_slots(Rank& rank);
  void grant_slots(Rank& rank);
  void revoke_grants(const Rank& rank);
  void end_restore(Rank& rank);  // However it ended. Also revokes grants.
  // Gives up the Slots that the session fills. A Slot that a GPU fills rests first.
  void abandon_fillings(const Rank& rank, SessionId filler);
  void end_rests(const Rank& rank);  // Those whose time has come.

  // As Engine::call.
  Status carry_out(Caller by, control::SetLayout it);
  Status carry_out(Caller by, control::Begin it);
  Status carry_out(Caller by, control::Filled it);
  Status carry_out(Caller by, control::Abandon it);
  Status carry_out(Caller by, control::Arrived it);
  Status carry_out(Caller by, control::Skipped it);

  std::uint64_t slot_bytes() const { return slots_.bytes(); }
  Settled settled(const Rank& rank) const;
  // The newest committed step is stored, as far as there is a directory.
  bool is_stored() const;
  bool is_flushed(bool wait_for_commits) const;  // And no capture is under way.
  void retire_useless();
  std::string trouble() const;  // Ranks that save nothing, since they have no Slots; empty: none.

 private:
  static void send_slots(Session& session, const OwnSlots& own);
  asio::awaitable<void> make_slots(std::uint32_t rank, std::uint32_t count, std::uint64_t bytes);
  void slots_failed(Rank& rank, Error error);
  void slots_changed(Rank& rank);  // There are others, or it is known that they cannot be had.
  Status begin(Caller by, OwnSlot& own, Step step);
  // The trainer began the step, and nothing comes of it: its wait for the step ends.
  static void send_dropped(Session* session, format::StepId at);
  Status drop(Caller by, Step step);
  Status fill(Caller by, OwnSlot& own, control::Filled filled);
  OwnSlot* slot_of(Caller by, std::uint32_t slot, std::uint64_t generation);  // Null: replaced.
  Result<std::shared_ptr<const format::ShardRecord>> record_of(const Session& session,
                                                               format::ShardId id,
                                                               control::Filled& filled) const;
  asio::awaitable<void> checksum_and_seal(SessionId id, std::shared_ptr<arena::Slot> slot,
                                          format::ShardRecord record, std::vector<Crc32> taken);
  void seal(Session* session, arena::Slot& slot, std::shared_ptr<const format::ShardRecord> record);

  const JobFacts& facts_;
  JobLife& life_;
  Ranks& ranks_;
  SlotTable& slots_;
  OldWorld& old_world_;
  std::uint32_t slot_count_ = 2;
  bool is_flush_idle_ = false;
};

}  // namespace ckpt::node
