// EmbeddedLink: the engine inside the trainer's process, on ckpt-snap: for tests, and for places
// where a second process is not allowed. Its memory goes with the process; peers and storage stay.
//
// Slots are memfd segments here too, and mapped a second time for the trainer: what was granted
// stays mapped while the engine replaces its Slots, exactly as with the daemon.
//
// Threads:  everything but the EngineSide's calls runs on ckpt-snap.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "arena/shared_slot_memory.hpp"
#include "client/session_link.hpp"
#include "client/snap_thread.hpp"
#include "node/session_calls.hpp"
#include "os/file_system.hpp"
#include "wire/tcp_network.hpp"

namespace ckpt::client {

class EmbeddedLink final : public EngineSide, private node::SessionEvents {
 public:
  EmbeddedLink(const Options& options, wire::control::Attach attach,
               std::shared_ptr<LinkState> state);
  ~EmbeddedLink() override;

  void start();
  void post(wire::control::Message message) override;
  void keep_mapped_by(std::shared_ptr<device::MemoryPins> pins) override;
  void let_go(MappedSlot slot) override;

 private:
  // What the engine runs on, destroyed from the last to the first; the thread outlives it.
  struct Machine;

  DetachedTask attach();
  DetachedTask stop_engine();
  Result<MappedSlot> map_slot(arena::SlotMemory& memory, std::uint64_t generation) const;

  void slots_ready(std::vector<arena::SlotMemory*> memories) override;
  void slots_failed(Error error) override { state_->slots_failed(std::move(error)); }
  void slot_granted(std::uint32_t slot) override { state_->slot_granted(slot); }
  void next_capture(Step step) override { state_->next_capture(step); }
  void level_reached(Step step, Level level) override { state_->level_reached(step, level); }
  void step_dropped(Step step) override { state_->step_dropped(step); }
  void restore_filling(node::Filling filling) override {
    state_->restore_filling(std::move(filling));
  }
  void restore_offered(node::SlotOffer offer) override {
    state_->restore_offered(std::move(offer));
  }
  void begun(node::Begun begun) override { state_->begun(std::move(begun)); }
  void closed(Status status) override { state_->closed(std::move(status)); }
  void fenced(std::string reason) override { state_->fenced(std::move(reason)); }
  void noticed(node::Notice notice) override { state_->noticed(std::move(notice)); }
  void status_told(std::string json) override { state_->status_told(std::move(json)); }

  std::shared_ptr<LinkState> state_;
  wire::control::Attach attach_;
  int prefault_threads_;
  SnapThread thread_;
  std::unique_ptr<Machine> machine_;
  std::optional<node::SessionCalls> calls_;  // Once attached.
  std::shared_ptr<device::MemoryPins> pins_;
  std::vector<MappedSlot> mapped_;  // By Slot.
  bool has_stopped_ = false;
};

}  // namespace ckpt::client
