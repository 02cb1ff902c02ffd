// StepLender: one connection of a tool that reads a step in memory.
//
//   open_held -> held_step, then: ask_record -> held_record, ask_chunks -> held_chunk...
//
// Threads:  the engine's. Lifetime: the connection's; the engine outlives it.
#pragma once

#include <memory>
#include <vector>

#include "node/engine.hpp"

namespace ckpt::daemon {

class StepLender {
 public:
  explicit StepLender(node::Engine& engine) : engine_(engine) {}

  static bool is_for(const wire::control::Message& question);
  // The messages that answer it. Errors of the step are in them. Errors: corruption (about a step,
  // and none is open).
  Task<std::vector<wire::control::Message>> answer(wire::control::Message question);

 private:
  wire::control::HeldStep open(const wire::control::OpenHeld& question);

  node::Engine& engine_;
  std::shared_ptr<node::LentStep> step_;  // Null: none is open.
};

}  // namespace ckpt::daemon
