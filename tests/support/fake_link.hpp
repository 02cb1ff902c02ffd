// FakeLink: an engine that consists of a few Slots in this process and does what the test says.
//
// What was filled is kept as copies, so that every step can be looked at and restored; its Slot is
// granted again at once, unless the test holds it.
//
// Threads: as Link. The test looks at the FakeNode when no capture runs, or under its lock.
#pragma once

#include <ckpt/result.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/link.hpp"

namespace ckpt::test {

struct FakeShard {
  std::shared_ptr<const format::ShardRecord> record;
  std::vector<std::byte> bytes;
};

// FakeNode: what outlives a Link, and what the test sets and looks at.
struct FakeNode {
  // Set by the test.
  std::size_t slot_count = 2;
  bool holds_slots = false;          // What was filled is not granted again.
  bool is_away = false;              // No daemon.
  bool is_slow = false;              // Slots are not made while somebody waits.
  bool takes_time = false;           // Slots are there once somebody waits for them.
  bool grants_late = false;          // None is granted until somebody waits for it.
  std::optional<Error> slots_error;  // They cannot be made.
  bool dies_after_copying = false;   // In a restore, and takes its steps along.
  Step next_capture{};
  std::function<void()> on_filled;  // Before it is taken, on the thread that copied last.
  Status closing;
  std::optional<Step> lost;  // With a daemon that died.
  std::uint64_t timeline = 1;
  client::LinkCounters counters;

  // Seen by the test.
  std::vector<format::Layout> layouts;  // As they were told.
  std::vector<FakeShard> shards;        // As they were filled, oldest first.
  std::vector<Step> skipped;
  std::vector<Step> taken;
  std::vector<node::StepTime> step_times;
  int abandoned = 0;
  int fresh_starts = 0;
  int closes = 0;
  std::vector<Step> told_restored;
  std::vector<Step> bad_copies;  // That copy_out refused.

  std::mutex mutex;
  std::vector<std::unique_ptr<std::vector<std::byte>>> slots;
  std::deque<std::uint32_t> free_slots;
};

class FakeLink final : public client::Link {
 public:
  explicit FakeLink(std::shared_ptr<FakeNode> node) : node_(std::move(node)) {}

  Status set_layout(const format::Layout& layout, client::Deadline deadline) override;
  Status slots_status() const override;
  Status start_fresh(client::Deadline deadline) override;
  Status wait_granted(client::Deadline deadline) override;
  bool is_ready() const override;
  Identity identity() const override;
  Step next_capture() const override { return node_->next_capture; }
  std::optional<client::TakenSlot> take_slot(Step step) override;
  void filled(const client::TakenSlot& granted, node::Filled filled) override;
  void abandon(const client::TakenSlot& granted) override;
  void skipped(Step step) override {
    const std::lock_guard lock(node_->mutex);
    node_->skipped.push_back(step);
  }
  void step_time(const node::StepTime& steps) override { node_->step_times.push_back(steps); }
  Status ask_restore(std::optional<Step> wanted, client::Deadline deadline) override;
  Result<Restored> restore(const CopyOut& copy_out, client::Deadline deadline) override;
  Status restored_ok(Step step) override;
  Status wait(Step step, Level level, client::Deadline deadline) override;
  client::LinkCounters counters() const override;
  std::optional<Step> newest_lost() const override { return node_->lost; }
  Status close(client::Deadline deadline) override;

 private:
  void make_slots(std::uint64_t bytes);
  Status slots_status_locked() const;

  std::shared_ptr<FakeNode> node_;
  std::optional<Step> wanted_;  // By the restore that was asked for.
};

}  // namespace ckpt::test
