// Goal:   no message between a trainer and its daemon is misread.
// Method: the input is a sequence of messages: kind (u32), length of the body (u32), body. Each is
//         decoded with no descriptor and with one.
#include <algorithm>
#include <cstring>

#include "fuzz.hpp"
#include "wire/control_codec.hpp"

namespace ckpt::fuzz {

namespace {

constexpr std::size_t head_bytes = 8;

void read(std::uint16_t kind, Bytes body, std::size_t descriptors) {
  os::LocalMessage message(kind, {body.begin(), body.end()});
  message.descriptors.resize(descriptors);
  const auto decoded = wire::control::decode(message);
  if (!decoded) return;
  const auto again = wire::control::encode(*decoded);
  promise(again.has_value(), "a message that was read can be sent");
  os::LocalMessage second(again->kind, again->body);
  second.descriptors.resize(descriptors);
  const auto back = wire::control::decode(second);
  promise(back && wire::control::encode(*back)->body == again->body, "a message is kept");
}

}  // namespace

void fuzz_one(Bytes input) {
  while (input.size() >= head_bytes) {
    std::uint32_t kind = 0;
    std::uint32_t length = 0;
    std::memcpy(&kind, input.data(), sizeof kind);
    std::memcpy(&length, input.data() + sizeof kind, sizeof length);
    input = input.subspan(head_bytes);
    const Bytes body = input.first(std::min<std::size_t>(length, input.size()));
    input = input.subspan(body.size());
    for (const std::size_t descriptors : {0, 1})
      read(static_cast<std::uint16_t>(kind), body, descriptors);
  }
}

}  // namespace ckpt::fuzz
