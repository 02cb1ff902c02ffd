// ControlCodec: control messages as a LocalConnection carries them: a kind, a body, descriptors.
//
// The sender is a process of our own user, and may still be broken: everything from the socket is
// checked before it is used.
#pragma once

#include <ckpt/result.hpp>
#include <string_view>

#include "os/local_socket.hpp"
#include "wire/control_message.hpp"

namespace ckpt::wire::control {

// Without its descriptors: the caller adds one for each segment of SlotSegments.
// Errors: exhausted (the body is above its limit: a layout of far too many tensors).
Result<os::LocalMessage> encode(const Message& message);

// Does not take the descriptors.
// Errors: corruption (an unknown kind, a wrong body, a wrong number of descriptors).
Result<Message> decode(const os::LocalMessage& message);

Hello our_hello();
// Errors: version_mismatch, which names both versions and what to do. `other` is the other side's
// program: "the daemon", "the trainer".
Status check_hello(const Hello& hello, std::string_view other);

}  // namespace ckpt::wire::control
