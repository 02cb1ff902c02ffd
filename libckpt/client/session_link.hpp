// SessionLink: the Link, whatever the engine: the trainer's calls become messages for an
// EngineSide, and waiting becomes waiting on the LinkState.
#pragma once

#include <ckpt/options.hpp>
#include <memory>
#include <string>

#include "client/link.hpp"
#include "client/link_state.hpp"
#include "wire/control_message.hpp"

namespace ckpt::client {

// EngineSide: the way to the engine, with the thread `ckpt-snap` that runs it.
//
// Threads:  post from any thread of the trainer. Lifetime: the destructor says goodbye, within a
//           second, and joins the thread.
class EngineSide {
 public:
  virtual ~EngineSide() = default;
  // Carried out on ckpt-snap, in the order of the calls. While the engine is away, captures are
  // forgotten; the layout, and what the session waits for, are told to the next engine. What a
  // `skipped` says is asked of the LinkState when its turn comes.
  virtual void post(wire::control::Message message) = 0;
  // See Link.
  virtual void keep_mapped_by(std::shared_ptr<device::MemoryPins> pins) { (void)pins; }
  // Lets a mapping go, which can take long, on ckpt-snap.
  virtual void let_go(MappedSlot slot) = 0;
};

class SessionLink final : public Link {
 public:
  // `side` posts its events to `state`.
  SessionLink(std::shared_ptr<LinkState> state, std::unique_ptr<EngineSide> side);
  ~SessionLink() override;
  SessionLink(const SessionLink&) = delete;
  SessionLink& operator=(const SessionLink&) = delete;

  void keep_mapped_by(std::shared_ptr<device::MemoryPins> pins) override;
  Status set_layout(const format::Layout& layout, Deadline deadline) override;
  Status slots_status() const override;
  Status start_fresh(Deadline deadline) override;
  Status wait_granted(Deadline deadline) override;
  bool is_ready() const override;
  Identity identity() const override;
  Step next_capture() const override;
  std::optional<TakenSlot> take_slot(Step step) override;
  void arrived(const TakenSlot& taken, std::uint64_t bytes) override;
  void filled(const TakenSlot& taken, node::Filled filled) override;
  void abandon(const TakenSlot& taken) override;
  void skipped(Step step) override;
  void passed(Step step) override;
  void step_time(const node::StepTime& steps) override;
  Status ask_restore(std::optional<Step> wanted, Deadline deadline) override;
  Result<Restored> restore(const CopyOut& copy_out, Deadline deadline) override;
  void watch_restores(RestoreWatch watch) override { watch_ = std::move(watch); }
  Status restored_ok(Step step) override;
  Status wait(Step step, Level level, Deadline deadline) override;
  LinkCounters counters() const override;
  Result<std::string> status(Deadline deadline) override;
  std::optional<Step> newest_lost() const override;
  Status close(Deadline deadline) override;

 private:
  // A fork leaves the child a Link without its thread. Errors: invalid_argument.
  Status check_process() const;
  bool is_forked() const;

  std::shared_ptr<LinkState> state_;
  std::unique_ptr<EngineSide> side_;
  RestoreWatch watch_;
  Deadline asked_at_{};  // For the newest restore.
  int process_;          // The pid that opened it.
};

// Of rank 0 it tells of a long wait for Slots: the others' waits are the same.
std::shared_ptr<LinkState> make_link_state(const Options& options);

}  // namespace ckpt::client
