// FakeEngine: an engine below LinkState that consists of a few Slots in this process and does what
// the test says.
//
// Filled Slots are kept as copies, so that every step can be looked at and restored; its Slot is
// granted again at once, unless the test holds it.
//
// Threads: as EngineSide. The test looks at the FakeNode when no capture runs, or under its lock.
#pragma once

#include <ckpt/result.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "client/session_link.hpp"

namespace ckpt::test {

struct FakeShard {
  std::shared_ptr<const format::ShardRecord> record;
  std::vector<std::byte> bytes;
};

// FakeNode: the part that outlives a session, for the test to set and look at.
class FakeNode {
 public:
  // Set by the test.
  std::size_t slot_count = 2;
  Level reached = Level::captured;   // By a step whose Slot is filled.
  bool holds_slots = false;          // Filled Slots are not granted again.
  bool is_slow = false;              // Slots are not made, and nothing that needs them.
  bool makes_first = false;          // Slots are for restores alone until finish_slots().
  bool takes_time = false;           // The next layout gets no Slots, but the one after it.
  bool grants_late = false;          // The next Slots are new ones, granted by another thread.
  std::optional<Error> slots_error;  // They cannot be made.
  bool dies_after_copying = false;   // In a restore, and takes its steps along.
  std::function<void()> on_filled;   // Before it is taken, on the thread that copied last.
  std::string nothing_reason;        // Why there is nothing to restore.
  std::optional<Step> newest_seen;   // As it says of each restore.
  Status closing;

  // Events, to the newest session.
  void finish_slots();  // It is not slow any more.
  void free_slot(std::uint32_t slot);
  void announce(Step step);  // No rank captures a step below it.
  void go_away();            // The daemon is gone, with the Slots.
  void come_back();

  // Seen by the test.
  std::vector<format::Layout> layouts;                // As they were sent.
  std::vector<FakeShard> shards;                      // As they were filled, oldest first.
  std::vector<std::vector<format::CopyNote>> copies;  // Parallel to them.
  std::vector<wire::control::AskRestore> asked;
  std::vector<Step> skipped;
  std::vector<Step> passed;
  std::vector<Step> taken;
  std::vector<wire::control::StepTime> step_times;
  std::vector<wire::control::Arrived> arrived;
  int abandoned = 0;
  int fresh_starts = 0;
  int closes = 0;
  std::chrono::milliseconds close_deadline{0};
  std::vector<Step> told_restored;
  std::vector<Step> bad_copies;  // That the trainer refused.
  std::mutex mutex;

 private:
  friend class FakeEngine;
  struct Restore {
    std::uint64_t ask = 0;
    std::optional<Step> wanted;
    std::size_t next = 0;  // Shards below it are still to be offered.
  };

  client::LinkState& state() { return *state_; }
  void make_slots(std::uint64_t bytes);
  void show_slots();
  void answer_layout();
  void grant_free();
  void begin(std::uint64_t ask, std::optional<format::StepId> restored);
  void refuse(Error error);
  void offer_next();
  void keep(wire::control::Filled& filled);

  void take(wire::control::SetLayout& message);
  void take(wire::control::StartFresh& message);
  void take(wire::control::Begin& message);
  void take(wire::control::Filled& message);
  void take(wire::control::Abandon& message);
  void take(wire::control::Skipped& message);
  void take(wire::control::AskRestore& message);
  void take(wire::control::RestoreResult& message);
  void take(wire::control::RestoredOk& message) { told_restored.push_back(message.step); }
  void take(wire::control::Passed& message) { passed.push_back(message.step); }
  void take(wire::control::StepTime& message) { step_times.push_back(message); }
  void take(wire::control::Arrived& message) { arrived.push_back(message); }
  void take(wire::control::AskStatus&);
  void take(wire::control::Close&);
  template <class Other>
  void take(Other&) {}  // Nothing that a test of the trainer's side looks at.

  std::shared_ptr<client::LinkState> state_;  // The newest session's.
  bool is_away_ = false;
  bool is_running_ = false;  // That session has begun its timeline.
  std::uint64_t timeline_ = 1;
  std::uint64_t generation_ = 0;
  std::vector<client::MappedSlot> slots_;
  std::set<std::uint32_t> free_;
  Restore restore_;
};

// The way to the node, of one session.
class FakeEngine final : public client::EngineSide {
 public:
  FakeEngine(std::shared_ptr<FakeNode> node, std::shared_ptr<client::LinkState> state);
  ~FakeEngine() override;
  FakeEngine(const FakeEngine&) = delete;
  FakeEngine& operator=(const FakeEngine&) = delete;

  void post(wire::control::Call call) override;
  void let_go(client::MappedSlot slot) override { (void)slot; }

 private:
  std::shared_ptr<FakeNode> node_;
  std::shared_ptr<client::LinkState> state_;
  std::thread late_grants_;
};

std::unique_ptr<client::SessionLink> link_to(std::shared_ptr<FakeNode> node);

}  // namespace ckpt::test
