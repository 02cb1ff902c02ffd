// Slot: the memory of one rank's capture, and the only states it can be in.
//
//   free --begin_fill--> filling --filled--> filled --seal--> sealed --retire (no leases)--> free
//                           |                  |                +--quarantine--> quarantined
//                           +----- abandon ----+--> free              |
//                                                     free <--retire--+
//
// Invariants: others can read bytes only while the Slot is sealed, and then they never change. A
//             Slot with a Lease is never free. A quarantined Slot gives no Lease, and is freed like
//             a sealed one: a reader that has one may still use what it verifies.
// Threads: one (the engine's). A Lease's bytes may be read from any thread.
// Lifetime: shared: a Lease keeps its Slot, so that it may outlive the engine that gave it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "arena/slot_memory.hpp"
#include "base/assert.hpp"
#include "format/copy_note.hpp"
#include "format/shard_record.hpp"

namespace ckpt::arena {

class Slot : public std::enable_shared_from_this<Slot> {
 public:
  enum class State : std::uint8_t { free, filling, filled, sealed, quarantined };

  explicit Slot(std::unique_ptr<SlotMemory> memory);

  void begin_fill(format::ShardId id);
  void filled();
  void seal(std::shared_ptr<const format::ShardRecord> record);
  void abandon();
  void quarantine();
  // Notes what its trainer found of copies that ranks divide, as they were at this capture.
  void note_copies(std::vector<format::CopyNote> copies);
  // Frees the Slot, at once or when the last Lease ends.
  void retire();

  State state() const { return state_; }
  bool is_retiring() const { return is_retiring_; }
  bool is_leased() const { return lease_count_ > 0; }
  format::ShardId id() const { return id_; }
  const std::shared_ptr<const format::ShardRecord>& record() const { return record_; }
  const Digest& digest() const { return digest_; }  // The record's, while sealed.
  // Null: nothing was noted here. A copy of the shard at another node has no notes.
  const std::shared_ptr<const std::vector<format::CopyNote>>& copies() const { return copies_; }
  std::uint64_t capacity() const { return memory_->bytes().size(); }
  SlotMemory& memory() { return *memory_; }

 private:
  friend class Lease;
  void become_free();

  std::unique_ptr<SlotMemory> memory_;
  std::shared_ptr<const format::ShardRecord> record_;
  std::shared_ptr<const std::vector<format::CopyNote>> copies_;
  Digest digest_;
  format::ShardId id_;
  std::uint32_t lease_count_ = 0;
  State state_ = State::free;
  bool is_retiring_ = false;
};

// Lease: a reader's claim on a sealed Slot; while it lives, the bytes do not change.
class Lease {
 public:
  explicit Lease(std::shared_ptr<Slot> slot);
  Lease(Lease&& other) noexcept = default;
  ~Lease() { reset(); }
  void reset();

  const format::ShardRecord& record() const { return *record_; }
  std::shared_ptr<const format::ShardRecord> shared_record() const { return record_; }
  std::span<const std::byte> bytes() const;
  std::vector<os::FileSpan> file_spans(format::Extent extent) const;
  Slot& slot() const { return *slot_; }

 private:
  std::shared_ptr<Slot> slot_;
  std::shared_ptr<const format::ShardRecord> record_;  // The record at the time of the claim.
};

}  // namespace ckpt::arena
