// OutgoingQueue: what waits to be sent to the daemon, in order, each thing once.
//
// A daemon that does not read, or a trainer that speaks faster than messages go out, must not make
// it grow: what a later message says anew replaces the one before it. What is left to grow by are
// calls that wait for their answers, and captures, which need a Slot that the daemon granted.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <deque>

#include "wire/control_message.hpp"

namespace ckpt::client {

class OutgoingQueue {
 public:
  // A trainer has a few under way: far fewer than this.
  static constexpr std::size_t size_max = 1024;

  // False: full, the message is not kept.
  bool push(wire::control::Message message);
  wire::control::Message pop();
  bool is_empty() const { return waiting_.empty(); }
  std::size_t size() const { return waiting_.size(); }
  void clear() { waiting_.clear(); }

 private:
  // Whether what waits says it, or was made to.
  bool is_said(const wire::control::Message& message);

  std::deque<wire::control::Message> waiting_;
};

}  // namespace ckpt::client
