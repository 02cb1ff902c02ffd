// Goal:   scripts and trainers can read who the daemon is, and damaged files are refused.
// Method: write and read one, then take each part away or change its type.
#include "daemon/ready_file.hpp"

#include <catch2/catch.hpp>

namespace ckpt::daemon {

TEST_CASE("ready file: it reads back as it was written", "[unit][daemon]") {
  const Ready ready{{4711, 81234}, "0.1.0", "/run/user/1000/libckpt/ckptd.sock", 1 << 30};
  const auto text = to_json(ready);
  CHECK(text.back() == '\n');
  const auto back = parse_ready(text);
  REQUIRE(back);
  CHECK(*back == ready);
  // That of an older version says nothing of its budget.
  CHECK(parse_ready(R"({"pid":1,"start_ticks":1,"version":"","socket":""})")->memory_budget == 0);
}

TEST_CASE("ready file: damaged ones are refused", "[unit][daemon]") {
  const auto text = to_json({{4711, 81234}, "0.1.0", "/s", 1});
  for (std::size_t bytes = 0; bytes + 2 < text.size(); ++bytes)
    CHECK_FALSE(parse_ready(text.substr(0, bytes)));
  for (const char* broken : {"[]", "7", R"({"pid":-1,"start_ticks":1,"version":"","socket":""})",
                             R"({"pid":0,"start_ticks":1,"version":"","socket":""})",
                             R"({"pid":99999999999,"start_ticks":1,"version":"","socket":""})",
                             R"({"pid":1,"start_ticks":"1","version":"","socket":""})",
                             R"({"pid":1,"start_ticks":1,"version":7,"socket":""})",
                             R"({"pid":1,"start_ticks":1,"version":""})"}) {
    INFO(broken);
    const auto ready = parse_ready(broken);
    REQUIRE_FALSE(ready);
    CHECK(ready.error().code() == Errc::corruption);
  }
}

}  // namespace ckpt::daemon
