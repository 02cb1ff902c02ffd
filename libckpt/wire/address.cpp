#include "wire/address.hpp"

#include <fmt/format.h>

#include <charconv>

namespace ckpt::wire {

Result<Address> Address::parse(std::string_view text) {
  const auto refuse = [text](std::string_view why) {
    return fail(Errc::invalid_argument,
                fmt::format("address \"{}\": {}; it is written host:port, or [host]:port where the "
                            "host has colons",
                            text, why));
  };
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return refuse("there is no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  const bool has_brackets = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (has_brackets) host = host.substr(1, host.size() - 2);
  if (host.empty()) return refuse("there is no host");
  if (!has_brackets && host.find(':') != std::string_view::npos)
    return refuse("the host has colons and no brackets");
  if (host.find_first_of("[] \t\n/") != std::string_view::npos)
    return refuse("the host has a character that is not allowed");
  Address address;
  address.host = host;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, address.port);
  if (error != std::errc() || stop != end) return refuse("the port is not a number up to 65535");
  return address;
}

std::string Address::to_string() const {
  const bool needs_brackets = host.find(':') != std::string::npos;
  return needs_brackets ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace ckpt::wire
