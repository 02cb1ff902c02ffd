// Goal:   a size means the same wherever it is written, and what is shown can be read back.
// Method: each unit, each way to be wrong, and sizes around the units.
#include "base/byte_text.hpp"

#include <catch2/catch.hpp>
#include <limits>

#include "base/units.hpp"

namespace ckpt {

TEST_CASE("byte text: units with an i and letters count by 1024, those with a B by 1000",
          "[unit][base]") {
  const auto [text, bytes] = GENERATE(table<std::string, std::uint64_t>({
      {"0", 0},
      {"4096", 4096},
      {"7B", 7},
      {"1KiB", KiB},
      {"500MiB", 500 * MiB},
      {"64GiB", 64 * GiB},
      {"2TiB", 2 * TiB},
      {"1K", KiB},
      {"500M", 500 * MiB},
      {"64G", 64 * GiB},
      {"2T", 2 * TiB},
      {"1KB", 1000},
      {"500MB", 500'000'000},
      {"64GB", 64'000'000'000},
      {"2TB", 2'000'000'000'000},
      {"64 GiB", 64 * GiB},
      {"9223372036854775807", std::numeric_limits<std::int64_t>::max()},
  }));
  CAPTURE(text);
  CHECK(parse_byte_text(text) == bytes);
}

TEST_CASE("byte text: other texts are none", "[unit][base]") {
  const std::string text =
      GENERATE("", " ", "GB", "-1", "+1", "1.5GB", "1e9", "5gb", "5GBx", "5 G B", "0x10",
               "9223372036854775808", "9007199254740992KiB", "99999999TB", "99999999999999999999");
  CAPTURE(text);
  CHECK_FALSE(parse_byte_text(text));
}

TEST_CASE("byte text: what is shown is short, and reads back", "[unit][base]") {
  CHECK(show_byte_text(0) == "0");
  CHECK(show_byte_text(64 * GiB) == "64GiB");
  CHECK(show_byte_text(500'000'000) == "500MB");
  CHECK(show_byte_text(1025) == "1025B");
  for (const std::uint64_t unit :
       {KiB, MiB, GiB, TiB, std::uint64_t{1000}, std::uint64_t{1'000'000}})
    for (const std::uint64_t bytes : {unit - 1, unit, unit + 1, 3 * unit})
      CHECK(parse_byte_text(show_byte_text(bytes)) == bytes);
}

}  // namespace ckpt
