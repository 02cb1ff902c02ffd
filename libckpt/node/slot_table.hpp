// SlotTable: all Slots of one job on this node: those its trainers fill, and copies for other
// nodes.
//
// It knows where bytes lie and which state they are in, and keeps the memory budget. It decides
// nothing: Job says what to free.
// Threads: the engine's. Lifetime: its Slots are shared with Leases and may outlive it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "arena/arena_limits.hpp"
#include "arena/slot.hpp"
#include "node/context.hpp"
#include "node/early_checksums.hpp"
#include "node/put_aside.hpp"

namespace ckpt::node {

// SlotRest: the Slot stays `filling` although nobody fills it any more.
struct SlotRest {
  SessionId of;  // The trainer that died.
  Time until;
};

struct OwnSlot {
  std::shared_ptr<arena::Slot> slot;
  std::uint64_t number = 0;               // Which one of all that were made for this job.
  bool is_granted = false;                // Free, and the session may begin to fill it.
  std::shared_ptr<EarlyChecksums> early;  // For the filling under way.
  std::optional<SessionId> filler;        // The trainer that fills it; none: the engine itself.
  // No capture gets it. It goes when the restore is over, unless it is one of those that captures
  // get once all of them are made.
  bool is_for_restore = false;
  std::optional<SlotRest> rest;  // A GPU may still write into it.
};

struct OwnSlots {
  std::vector<OwnSlot> slots;
  std::uint64_t slot_bytes = 0;  // Capacity of each for captures; 0: none made yet.
  bool is_allocating = false;
};

class SlotTable {
 public:
  SlotTable(EngineContext& context, std::string job) : context_(context), job_(std::move(job)) {}
  ~SlotTable();

  // Replaces the rank's Slots by `count` of `bytes` each; those there already are kept when they
  // are big enough. Slots that others hold stay readable until retired. Calls `made_one` when one
  // is there and others are to come; new ones are for restores until then. Errors:
  // exhausted (over the budget, with the numbers: all is as before; or the machine has no memory:
  // those that were made stay, for a restore alone).
  Task<void> make_own(std::uint32_t rank, std::uint32_t count, std::uint64_t bytes,
                      std::function<void()> made_one);
  // Adds one for a restore that finds no room in the others, instead of an earlier one. Errors: as
  // make_own.
  Task<void> make_for_restore(std::uint32_t rank, std::uint64_t bytes);
  bool drop_for_restore(std::uint32_t rank);  // False: there was none, or captures wait for it.
  OwnSlots& own(std::uint32_t rank) { return own_[rank]; }
  const std::map<std::uint32_t, OwnSlots>& all_own() const { return own_; }

  // A free Slot for a copy that a peer brings. While there is none, it is made in the background
  // and `made` is called. Errors: unavailable (being made: try again), exhausted (all hold what is
  // still needed).
  Result<std::shared_ptr<arena::Slot>> take_replica(const format::ShardRecord& record,
                                                    std::function<void()> made);
  // The same for a copy that was damaged here: of a rank's own it is one Slot more.
  Result<std::shared_ptr<arena::Slot>> take_for_healing(const format::ShardRecord& record,
                                                        std::function<void()> made);
  // Gives back what ranks of this node have more since, as far as it is free.
  void let_go_healed();

  // Sealed, and not about to be freed.
  static bool is_readable(const arena::Slot& slot);
  // Every readable Slot, own and replica.
  void for_each_sealed(const std::function<void(arena::Slot& slot, bool is_own)>& visit) const;
  // The rank will not come back here. The bytes in its Slots stay readable until retired.
  void let_go_own(std::uint32_t rank);
  // Gives the memory of its free Slots back, whatever they were for. True: there were some.
  bool let_go_free_own(std::uint32_t rank);
  bool has_occupied(format::StepId at) const;  // Some Slot has bytes of it, if only for a reader.
  // Gives the memory of free Slots back that were for copies of this rank and those above it.
  void let_go_replicas_from(std::uint32_t rank);
  // A sealed copy, wherever it lies here; null: none.
  std::shared_ptr<arena::Slot> find(const format::ShardId& id, const Digest& digest) const;

  // An older step of the timeline is captured, and not sealed yet: checksums that the daemon takes
  // may end in another order than the captures.
  bool has_older_unsealed(const format::ShardId& id) const;

  // Frees what `is_useless` says, now or when the last Lease ends. True: something was freed.
  bool retire_if(const std::function<bool(const format::ShardId& id)>& is_useless);
  // The copy that a reader found damaged serves nobody any more. Nothing happens if another reader
  // has found it before. Other copies of the shard here may be whole, and stay.
  void quarantine(const arena::Lease& damaged);
  // Whether such copies are kept for a restore (node/put_aside.hpp). Slots of ranks that cannot be
  // made otherwise have their memory; those for other copies, as for healing, wait. True: memory
  // was given back.
  bool keep_damaged(bool keeps);
  std::vector<PutAside::SharedLease> find_damaged(const format::ShardId& id,
                                                  const Digest& digest) const {
    return put_aside_.find(id, digest);
  }
  // Gives the memory of those back that are of this rank, or of all. True: there were some.
  bool let_go_damaged(std::optional<std::uint32_t> rank = std::nullopt);
  // Those that were put aside since the last call.
  std::vector<std::pair<format::ShardId, Digest>> take_quarantined() {
    return std::exchange(quarantined_, {});
  }
  // Gives the memory back, except what is leased; that goes when its Lease ends.
  void free_all();
  std::uint64_t bytes() const { return bytes_; }
  void check_invariants() const;

 private:
  Task<std::shared_ptr<arena::Slot>> make_slot(std::uint64_t bytes, std::string what);
  Status reserve(std::uint64_t bytes, const std::string& what);
  void release_reserved(std::uint64_t bytes);
  Task<std::shared_ptr<arena::Slot>> make_reserved(std::uint64_t bytes, std::string what);
  void for_each(const std::function<void(const arena::Slot& slot)>& visit) const;
  // For the error of a budget that is used up, after `given_back` bytes of free Slots.
  std::string used_by(std::uint64_t given_back = 0) const;
  // Those that are big enough.
  std::uint32_t count_replicas(std::uint32_t rank, std::uint64_t bytes) const;
  asio::awaitable<void> make_replicas(std::uint32_t rank, std::uint64_t bytes, std::uint32_t count,
                                      std::function<void()> made);
  Result<std::shared_ptr<arena::Slot>> take(const format::ShardRecord& record, std::uint32_t count,
                                            std::function<void()> made);
  bool let_go_replicas_of(std::uint32_t rank);
  void let_go_free(std::vector<std::shared_ptr<arena::Slot>>& slots);
  void discard(std::shared_ptr<arena::Slot> slot);
  void discard_all(OwnSlots& own_slots);
  void sweep_old();

  EngineContext& context_;
  std::string job_;
  std::map<std::uint32_t, OwnSlots> own_;
  std::map<std::uint32_t, std::vector<std::shared_ptr<arena::Slot>>> replicas_;  // By rank.
  std::set<std::uint32_t> replicas_being_made_;
  std::set<std::uint32_t> own_healed_;  // Ranks of this node with one Slot more.
  std::vector<std::pair<format::ShardId, Digest>> quarantined_;
  PutAside put_aside_;
  std::vector<std::shared_ptr<arena::Slot>> old_;  // Outgrown, but not free yet.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::uint64_t bytes_ = 0;             // All Slots, and those that are being made.
  std::uint64_t being_made_bytes_ = 0;  // Those whose memory is asked for.
  std::uint64_t own_made_ = 0;          // How many own Slots were made so far.
};

}  // namespace ckpt::node
