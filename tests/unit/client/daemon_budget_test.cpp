// Goal:   a memory_budget that a running daemon does not have is not without effect in silence.
// Method: ready-files of daemons with the same budget, another one and none; then a real daemon,
//         and a second trainer that finds it.
#include "client/daemon_budget.hpp"

#include <catch2/catch.hpp>

#include "base/log.hpp"
#include "support/patience.hpp"
#include "unit/client/daemon_place.hpp"

namespace ckpt::client {

TEST_CASE("daemon budget: another one than was asked for is named with both numbers",
          "[unit][client]") {
  Options options;
  const std::string ready = R"({"pid": 4711, "memory_budget": 1073741824})";
  CHECK(other_budget(options, ready) == "");
  options.memory_budget = 1u << 30;
  CHECK(other_budget(options, ready) == "");
  options.memory_budget = 500'000'000;
  CHECK(other_budget(options, ready) ==
        "option memory_budget = 500MB is without effect: the daemon that runs, pid 4711, has 1GiB, "
        "and only the trainer that starts a daemon sets it; `ckpt stop` ends this one");
  for (const char* other : {"", "{", "[]", "{}", R"({"pid": 1})", R"({"memory_budget": "1"})"})
    CHECK(other_budget(options, other) == "");
}

TEST_CASE("daemon budget: the trainer that finds a daemon is warned, not the one that starts it",
          "[unit][client]") {
  DaemonPlace place;
  place.options.world_size = 2;
  static std::vector<std::string> warned;
  warned.clear();
  Log::set_level(LogLevel::warning);
  Log::set_sink([](LogLevel level, std::string_view line) {
    if (level == LogLevel::warning) warned.emplace_back(line);
  });
  const auto open = [&] { return open_link(place.options, test::soon()); };
  const auto first = open();
  const std::size_t warned_first = warned.size();
  place.options.memory_budget *= 2;
  place.options.rank = 1;
  const auto second = open();
  Log::set_sink(nullptr);
  Log::set_level(LogLevel::info);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(warned_first == 0);
  REQUIRE(warned.size() == 1);
  CHECK_THAT(warned[0], Catch::Contains("rank 1 of job test: option memory_budget = 128MiB") &&
                            Catch::Contains("has 64MiB"));
}

}  // namespace ckpt::client
