// EmbeddedLink: the engine inside the trainer's process, on ckpt-snap: for tests, and for places
// where a second process is not allowed. Its memory goes with the process; peers and storage stay.
//
// Slots are memfd segments here too, and mapped a second time for the trainer. So granted Slots
// stay mapped while the engine replaces them, exactly as with the daemon.
//
// Threads:  everything but the EngineSide's calls runs on ckpt-snap.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "arena/shared_slot_memory.hpp"
#include "client/session_link.hpp"
#include "client/snap_thread.hpp"
#include "node/engine.hpp"
#include "os/file_system.hpp"
#include "wire/tcp_network.hpp"

namespace ckpt::client {

class EmbeddedLink final : public EngineSide, private node::SessionEvents {
 public:
  EmbeddedLink(const Options& options, control::Attach attach, std::shared_ptr<LinkState> state);
  ~EmbeddedLink() override;

  void start();
  void post(control::Call call) override;
  void keep_mapped_by(std::shared_ptr<device::MemoryPins> pins) override;
  void let_go(MappedSlot slot) override;

 private:
  // Everything that the engine runs on, destroyed in reverse order; the thread outlives it.
  struct Machine;

  DetachedTask attach();
  DetachedTask stop_engine();
  Result<MappedSlot> map_slot(const node::ReadySlot& slot) const;

  void slots_ready(std::vector<node::ReadySlot> slots) override;
  void tell(control::Event event) override { state_->notify(std::move(event)); }

  std::shared_ptr<LinkState> state_;
  control::Attach attach_;
  int prefault_threads_;
  SnapThread thread_;
  std::unique_ptr<Machine> machine_;
  std::optional<node::SessionId> session_;  // Once attached.
  std::shared_ptr<device::MemoryPins> pins_;
  std::vector<MappedSlot> mapped_;  // By Slot.
  bool has_stopped_ = false;
};

}  // namespace ckpt::client
