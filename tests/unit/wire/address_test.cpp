// Goal:   addresses as people write them are understood, and the rest is refused by name.
// Method: tables of both.
#include "wire/address.hpp"

#include <catch2/catch.hpp>

namespace ckpt::wire {

TEST_CASE("address: people's writing is understood and written back", "[unit][wire]") {
  const std::string text = GENERATE(as<std::string>(), "10.0.0.1:7711", "[::1]:1",
                                    "[fe80::1]:65535", "node-a.cluster:0", "localhost:7711");
  const auto address = Address::parse(text);
  REQUIRE(address);
  REQUIRE(address->to_string() == text);
}

TEST_CASE("address: brackets are no part of the host", "[unit][wire]") {
  const auto address = Address::parse("[::1]:7711");
  REQUIRE(address);
  REQUIRE(address->host == "::1");
  REQUIRE(address->port == 7711);
}

TEST_CASE("address: anything else is refused with its text", "[unit][wire]") {
  const std::string text =
      GENERATE(as<std::string>(), "", "host", ":1", "host:", "host:-1", "host:65536", "host:7x",
               "::1:7711", "[]:1", "[::1]", "a b:1", "host: 1", "http://host:1");
  const auto address = Address::parse(text);
  INFO(text);
  REQUIRE_FALSE(address);
  REQUIRE(address.error().code() == Errc::invalid_argument);
  REQUIRE(address.error().text().find(text) != std::string::npos);
}

}  // namespace ckpt::wire
