// Address: "host:port" as people write it: "10.0.0.1:7711", "[fe80::1]:7711", "node-a:7711".
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace ckpt::wire {

struct Address {
  std::string host;  // Without brackets.
  std::uint16_t port = 0;

  // Errors: invalid_argument (names the text).
  static Result<Address> parse(std::string_view text);
  std::string to_string() const;  // With brackets where the host has colons.
  bool operator==(const Address&) const = default;
};

}  // namespace ckpt::wire
