// OutgoingQueue: the messages that wait to be sent to the daemon, in order, each fact once.
//
// A daemon that does not read, or a trainer that is faster than the socket, must not make it grow:
// a newer message replaces the one that it outdates. Only calls that wait for their answers can add
// up, and captures, which need a granted Slot.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <deque>

#include "wire/control_message.hpp"

namespace ckpt::client {

class OutgoingQueue {
 public:
  // Far more than the few that a trainer has under way.
  static constexpr std::size_t size_max = 1024;

  // False: the queue is full, and the message is not kept.
  bool push(wire::control::Message message);
  wire::control::Message pop();
  bool is_empty() const { return waiting_.empty(); }
  std::size_t size() const { return waiting_.size(); }
  void clear() { waiting_.clear(); }

 private:
  // True: a waiting message now says the same.
  bool merge(const wire::control::Message& message);

  std::deque<wire::control::Message> waiting_;
};

}  // namespace ckpt::client
