// Rank: a trainer that keeps what the engine last said. NoMemory: an arena without any.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <vector>

#include "base/overloaded.hpp"
#include "node/engine.hpp"

namespace ckpt::test {

namespace control = wire::control;

class NoMemory final : public arena::MemorySource {
 public:
  Task<std::unique_ptr<arena::SlotMemory>> allocate(std::uint64_t) override {
    co_return fail(Errc::exhausted, "no memory in this test");
  }
};

struct Rank : node::SessionEvents {
  void slots_ready(std::vector<node::ReadySlot> all) override {
    slots = std::move(all);
    ++times_ready;
  }
  void tell(control::Event event) override {
    std::visit(Overloaded{
                   [&](control::SlotsFailed& it) { no_slots = std::move(it.result).error(); },
                   [&](control::Granted& it) { granted.push_back(it.slot); },
                   [&](control::LevelReached& it) { reach(it.step, it.level); },
                   [&](control::Filling& it) { fillings.push_back(std::move(it)); },
                   [&](control::Offer& it) { offered(std::move(it)); },
                   [&](control::Begun& it) { answer = std::move(it); },
                   [&](control::Notice& it) { notice = std::move(it); },
                   [&](control::Closed& it) { end = std::move(it.result); },
                   [](auto&) {},
               },
               event);
  }
  virtual void offered(control::Offer) {}

  control::Begin begin_of(std::uint32_t slot, Step step) const {
    return {slot, slots.at(slot).generation, step};
  }
  // The engine takes its checksums.
  control::Filled filled_of(std::uint32_t slot, Step step) const {
    control::Filled filled;
    filled.slot = slot;
    filled.generation = slots.at(slot).generation;
    filled.step = step;
    return filled;
  }
  // As it lies in the next Slot that was granted.
  Status capture_in(node::Engine& engine, Step step) {
    const std::uint32_t slot = granted.front();
    granted.pop_front();
    CKPT_CHECK(engine.call(session, begin_of(slot, step)));
    return engine.call(session, filled_of(slot, step));
  }

  node::SessionId session{};
  std::vector<node::ReadySlot> slots;
  std::size_t times_ready = 0;
  std::deque<std::uint32_t> granted;
  Step captured{}, committed{}, durable{};
  std::optional<control::Begun> answer;
  std::vector<control::Filling> fillings;
  std::optional<Status> end;  // The answer to Close.
  std::optional<Error> no_slots;
  control::Notice notice;

 private:
  void reach(Step step, Level level) {
    if (level == Level::captured) captured = std::max(captured, step);
    if (level == Level::committed) committed = std::max(committed, step);
    if (level == Level::durable) durable = std::max(durable, step);
  }
};

}  // namespace ckpt::test
