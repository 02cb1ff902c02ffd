// Goal:   a trainer that looks for its daemon in another place than the trainer before it hears of
//         the daemon that it did not find.
// Method: real daemons: one in a place that was named, then trainers in the user's usual place and
//         in a second named one.
#include <stdlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "support/patience.hpp"
#include "unit/client/daemon_place.hpp"

namespace ckpt::client {

TEST_CASE("two places: the daemon in the other one is named, unless the place was",
          "[unit][client]") {
  const DaemonPlace first;
  REQUIRE(open_link(first.options, test::soon()));
  const std::string other =
      "pid " + std::to_string(first.daemon()) + " in " + first.options.runtime_dir;
  static std::vector<std::string> warned;
  warned.clear();
  DaemonPlace second;
  const bool is_named = GENERATE(false, true);
  const std::string base = second.directory.file("base");
  std::filesystem::create_directory(base);
  if (!is_named) second.options.runtime_dir.clear();
  ::setenv("XDG_RUNTIME_DIR", base.c_str(), 1);
  Log::set_level(LogLevel::warning);
  Log::set_sink([](LogLevel level, std::string_view line) {
    if (level == LogLevel::warning) warned.emplace_back(line);
  });
  const bool is_open = open_link(second.options, test::soon()).has_value();
  Log::set_sink(nullptr);
  Log::set_level(LogLevel::info);
  ::unsetenv("XDG_RUNTIME_DIR");
  if (!is_named) second.options.runtime_dir = base + "/libckpt";  // Where its daemon is ended.
  REQUIRE(is_open);
  REQUIRE(warned.size() == (is_named ? 0 : 1));
  if (!is_named)
    CHECK_THAT(warned[0], Catch::Contains("no daemon ran in " + base) && Catch::Contains(other));
}

}  // namespace ckpt::client
