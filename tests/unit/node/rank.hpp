// Rank: a trainer that keeps what the engine last answered. NoMemory: an arena without any.
#pragma once

#include <optional>

#include "node/engine.hpp"

namespace ckpt::test {

class NoMemory final : public arena::MemorySource {
 public:
  Task<std::unique_ptr<arena::SlotMemory>> allocate(std::uint64_t) override {
    co_return fail(Errc::exhausted, "no memory in this test");
  }
};

struct Rank : node::SessionEvents {
  void slots_ready(std::vector<arena::SlotMemory*>) override {}
  void slots_failed(Error error) override { no_slots = std::move(error); }
  void slot_granted(std::uint32_t) override {}
  void next_capture(Step) override {}
  void level_reached(Step, Level) override {}
  void step_dropped(Step) override {}
  void noticed(node::Notice it) override { notice = std::move(it); }
  void restore_offered(node::SlotOffer) override {}
  void begun(node::Begun value) override { answer = std::move(value); }
  void closed(Status status) override { end = std::move(status); }
  void fenced(std::string) override {}

  node::SessionId session{};
  std::optional<node::Begun> answer;
  std::optional<Status> end;  // The answer to close().
  std::optional<Error> no_slots;
  node::Notice notice;
};

}  // namespace ckpt::test
