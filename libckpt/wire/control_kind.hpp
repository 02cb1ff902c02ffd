// Kind: the number and the name of a control message.
//
// A message is a struct with its `kind` and its one list of `fields` (format/fields.hpp), in the
// order of libckpt/docs/protocol.md, and a place in the list of messages of its file.
#pragma once

#include <cstdint>
#include <string_view>

#include "format/fields.hpp"

namespace ckpt::wire::control {

struct Kind {
  std::uint16_t number;   // On the wire; never given to another message.
  std::string_view name;  // For people: "attach".
};

}  // namespace ckpt::wire::control
