// SimTrainer: a trainer process of the simulation: it restores, then captures steps whose bytes are
// a function of (rank, step, timeline), so that whatever it is given back can be checked.
//
// Threads: its node's. It speaks to the engine as the daemon would for it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "format/layout.hpp"
#include "node/engine.hpp"

namespace ckpt::sim {

namespace control = wire::control;

// Oracle: the trainer's reports to the world, and the world's checks on them.
class Oracle {
 public:
  virtual ~Oracle() = default;
  virtual void began(std::uint32_t rank, std::uint64_t group, const control::Begun& begun) = 0;
  virtual void reached(std::uint32_t rank, format::StepId at, Level level, bool is_base) = 0;
  // A rank will not have the step, or all have given it up.
  virtual void skipped(std::uint64_t group, format::StepId at) = 0;
  virtual void dropped(std::uint64_t group, format::StepId at) = 0;
  virtual void came_to(format::StepId at) = 0;  // A trainer, before it calls its daemon.
  virtual void violated(const std::string& what) = 0;
};

// A trainer whose daemon was started again trains on in its timeline.
struct TrainsOn {
  control::Begun begun;
  Step done{};
};

struct TrainerPlan {
  node::AttachRequest request;
  std::string machine;                // The host, whatever the list of nodes calls it.
  std::optional<TrainsOn> trains_on;  // None: it restores.
  std::uint64_t group = 0;            // The launch's: all its ranks must begin alike.
  std::uint64_t seed = 0;
  std::uint64_t chunk_bytes = 4096;
  std::uint64_t tensor_bytes = 10'000;
  // It has its even part of one tensor, or all of it as the other ranks and captures its share, or
  // else a tensor of its own.
  bool has_part = false;
  bool has_copy = false;
  bool is_frozen = false;             // Most bytes of a tensor of its own change now and then only.
  std::vector<Step> looked_at;        // Asked for first, and not waited for.
  std::optional<Step> wanted;         // restore(step).
  std::uint64_t skip_one_in = 0;      // Steps it skips by itself, as with no free Slot.
  std::uint64_t retracts_one_in = 0;  // Steps before which it asks for a restore and gives it up.
  std::uint64_t lets_daemon_hash_one_in = 3;
};

class SimTrainer : public node::SessionEvents, public std::enable_shared_from_this<SimTrainer> {
 public:
  SimTrainer(TrainerPlan plan, std::shared_ptr<node::Engine> engine, Clock& clock, Oracle& oracle);

  // Attaches and trains until it is killed or fails.
  asio::awaitable<void> run();
  // The world's permission: ranks of one launch never are more than one step apart.
  void allow(Step step) { allowed_ = std::max(allowed_, step); }

  // It will never run again; its session is detached by the world, when its death is known.
  void kill() { is_dead_ = true; }
  // The plan of a trainer that goes on as this one, under a daemon that was started again.
  TrainerPlan plan_to_train_on() const;
  // Its machine died with it: there is no engine any more.
  void lose_machine() {
    is_dead_ = true;
    session_.reset();
    engine_.reset();
  }
  bool is_dead() const { return is_dead_; }
  bool has_failed() const { return has_failed_; }
  bool is_training() const { return timeline_ != 0 && !is_dead_ && !has_failed_; }
  Step done() const { return done_; }
  std::uint32_t rank() const { return plan_.request.rank; }
  std::uint64_t group() const { return plan_.group; }
  std::optional<node::SessionId> session() const { return session_; }
  const std::string& machine() const { return plan_.machine; }
  std::uint64_t captures() const { return captures_; }
  bool is_mixed() const { return is_mixed_; }  // It was restored from memory and from storage.
  // The step is not for the daemons to restore: what storage has of it is read from its path.
  bool was_unsupported() const { return was_unsupported_; }
  void close(std::chrono::milliseconds deadline) { (void)call(control::Close{deadline}); }
  bool is_closed() const { return is_closed_; }
  // A zombie wakes and goes on as if nothing had happened. Everything must be refused.
  void wake_as_zombie();

  void slots_ready(std::vector<node::ReadySlot> slots) override;
  void tell(control::Event event) override;

 private:
  void take(control::LevelReached reached);
  void take(control::Offer offer);
  void take(control::Begun begun);
  Status call(control::Call call) { return engine_->call(*session_, std::move(call)); }
  Task<void> attach();
  Task<void> begin();
  Task<void> wait_begun();
  bool is_due(Step step) const;
  Task<void> look_at(Step step);
  Task<void> train();
  Task<void> retract();
  Task<void> capture(Step step, std::uint32_t slot);
  Task<void> pause(Duration least, Duration most);
  Status check(const control::Offer& offer);
  control::AskRestore ask(std::optional<Step> wanted);
  std::vector<std::byte> expected_at(std::uint64_t timeline, Step step,
                                     const FlatRange& range) const;

  TrainerPlan plan_;
  std::shared_ptr<node::Engine> engine_;
  Clock& clock_;
  Oracle& oracle_;
  Random random_;
  format::Layout layout_;  // For its captures.
  format::Layout wanted_;  // For its restores.
  std::optional<node::SessionId> session_;
  std::vector<node::ReadySlot> slots_;
  std::size_t slot_bytes_ = 0;
  std::vector<std::uint32_t> granted_;
  std::optional<control::Offer> offer_;
  std::optional<control::Begun> begun_;
  control::Begun began_;                // The answer that it trains by.
  std::optional<format::StepId> base_;  // The restored step.
  std::uint64_t ask_ = 0;               // The number of what it asked last.
  Step next_capture_{};
  std::optional<Step> captured_for_;  // By time: the order that the last capture followed.
  Step allowed_{};
  Step done_{};
  std::uint64_t timeline_ = 0;
  std::uint64_t captures_ = 0;
  bool is_mixed_ = false;
  bool was_unsupported_ = false;
  bool is_dead_ = false;
  bool has_failed_ = false;
  bool is_fenced_ = false;
  bool is_closed_ = false;  // close() was answered.
};

}  // namespace ckpt::sim
