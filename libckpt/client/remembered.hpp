// Remembered: the messages that a trainer sent to its daemon, and sends again to the next one.
//
// A message is kept until it is answered, or until another timeline makes it meaningless.
// Threads: those of DaemonLink.
#pragma once

#include <optional>
#include <vector>

#include "wire/control_message.hpp"

namespace ckpt::client {

class Remembered {
 public:
  void said(const wire::control::Message& message);
  // Takes the answer to a wish; the session was on `timeline` until now.
  void begun(const wire::control::Begun& begun, std::uint64_t timeline);
  void closed() { close_.reset(); }

  // In the order in which a new daemon needs them.
  std::vector<wire::control::Message> all() const;

 private:
  std::optional<wire::control::SetLayout> layout_;
  std::optional<wire::control::Message> wish_;  // StartFresh or AskRestore, until answered.
  std::optional<wire::control::Flush> flush_;
  std::optional<wire::control::RestoredOk> restored_ok_;
  std::optional<wire::control::Close> close_;
};

}  // namespace ckpt::client
