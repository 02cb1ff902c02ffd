// Goal:   sizes, roundings and the generator are what all the rest takes them for.
// Method: boundaries; published values of SplitMix64.
#include <catch2/catch.hpp>
#include <ckpt/result.hpp>
#include <set>

#include "base/random.hpp"
#include "base/units.hpp"

namespace ckpt::test {
namespace {

TEST_CASE("units: rounding up is exact at multiples and does not overflow", "[unit][base]") {
  CHECK(div_ceil(0, 4) == 0);
  CHECK(div_ceil(1, 4) == 1);
  CHECK(div_ceil(4, 4) == 1);
  CHECK(div_ceil(5, 4) == 2);
  CHECK(div_ceil(~std::uint64_t{0}, 1) == ~std::uint64_t{0});
  CHECK(align_up(0, page_bytes) == 0);
  CHECK(align_up(page_bytes - 1, page_bytes) == page_bytes);
  CHECK(align_up(page_bytes, page_bytes) == page_bytes);
  CHECK(align_up(page_bytes + 1, page_bytes) == 2 * page_bytes);
}

TEST_CASE("result: a value that is not there is refused with the error's text", "[unit][base]") {
  Result<int> failed = fail(Errc::corruption, "chunk 17 is damaged");
  CHECK_THROWS_AS(failed.value(), BadResult);
  CHECK_THROWS_WITH(*failed, failed.error().message());
  CHECK_THROWS_WITH(*std::as_const(failed), failed.error().message());
  CHECK_THROWS_WITH(*std::move(failed), Catch::Contains("chunk 17 is damaged"));
  CHECK(*Result<int>(5) == 5);
}

TEST_CASE("random: the sequence is SplitMix64's, the same on every machine", "[unit][base]") {
  Random zero(0);
  CHECK(zero.next() == 0xe220a8397b1dcdafu);
  Random seeded(1234567);
  CHECK(seeded.next() == 6457827717110365317u);
  CHECK(seeded.next() == 3203168211198807973u);
  for (int i = 0; i < 1000; ++i) {
    CHECK(seeded.below(7) < 7);
    const double unit = seeded.unit();
    CHECK((unit >= 0.0 && unit < 1.0));
  }
}

TEST_CASE("random: the system's numbers differ", "[unit][base]") {
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 100; ++i) seen.insert(random_from_system());
  CHECK(seen.size() == 100);
}

}  // namespace
}  // namespace ckpt::test
