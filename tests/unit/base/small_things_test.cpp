// Goal:   sizes, roundings, the generator and the queue are what all the rest takes them for.
// Method: boundaries; published values of SplitMix64; one thread pushing while another pops.
#include <catch2/catch.hpp>
#include <memory>
#include <set>
#include <thread>

#include "base/bounded_queue.hpp"
#include "base/random.hpp"
#include "base/units.hpp"
#include "support/assertion_trap.hpp"

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

TEST_CASE("bounded queue: full is an answer and order is kept", "[unit][base]") {
  BoundedQueue<std::unique_ptr<int>> queue(2);
  CHECK(!queue.pop());
  CHECK(queue.push(std::make_unique<int>(1)));
  CHECK(queue.push(std::make_unique<int>(2)));
  CHECK(!queue.push(std::make_unique<int>(3)));
  CHECK(**queue.pop() == 1);
  CHECK(queue.push(std::make_unique<int>(4)));
  CHECK(**queue.pop() == 2);
  CHECK(**queue.pop() == 4);
  CHECK(!queue.pop());
  REQUIRE_TRIPS(BoundedQueue<int>(0));
}

TEST_CASE("bounded queue: two threads lose nothing", "[unit][base]") {
  constexpr int count = 20'000;
  BoundedQueue<int> queue(16);
  std::jthread writer([&queue] {
    for (int i = 0; i < count;) {
      if (queue.push(i)) {
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });
  int next = 0;
  bool in_order = true;
  while (next < count) {
    if (const auto value = queue.pop()) {
      in_order = in_order && *value == next;
      ++next;
    } else {
      std::this_thread::yield();
    }
  }
  CHECK(in_order);
}

}  // namespace
}  // namespace ckpt::test
