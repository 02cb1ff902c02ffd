// Goal:   an area of sums describes a Slot only while that Slot holds what the last capture into it
//         brought, and the area that a capture fills is never one that it compares with.
// Method: Slots in turn, captures that end badly, more Slots than areas; and random sequences
//         against a map of what each Slot holds.
#include "device/slot_areas.hpp"

#include <catch2/catch.hpp>
#include <map>

#include "base/random.hpp"
#include "support/assertion_trap.hpp"

namespace ckpt::test {

using device::SlotAreas;

TEST_CASE("slot areas: a Slot is described from its first good capture on", "[unit][device]") {
  SlotAreas areas(2);
  REQUIRE(areas.count() == 3);
  for (const std::uint64_t slot : {7, 9}) {
    REQUIRE_FALSE(areas.begin(slot).before);
    areas.keep();
  }
  const auto seventh = areas.begin(7);
  REQUIRE(seventh.before == 0);
  REQUIRE(seventh.now == 2);
  areas.keep();
  const auto ninth = areas.begin(9);
  REQUIRE(ninth.before == 1);
  REQUIRE(ninth.now == 0);
  areas.keep();
}

TEST_CASE("slot areas: a capture that ends badly leaves its Slot unknown", "[unit][device]") {
  SlotAreas areas(2);
  (void)areas.begin(7);
  areas.keep();
  REQUIRE(areas.begin(7).before);
  areas.drop();
  REQUIRE_FALSE(areas.begin(7).before);
  areas.keep();
  REQUIRE(areas.begin(7).before);
  areas.keep();
}

TEST_CASE("slot areas: a Slot without a name is not described", "[unit][device]") {
  SlotAreas areas(1);
  for (int i = 0; i < 3; ++i) {
    REQUIRE_FALSE(areas.begin(0).before);
    areas.keep();
  }
}

TEST_CASE("slot areas: nothing is known behind a restore", "[unit][device]") {
  SlotAreas areas(2);
  for (const std::uint64_t slot : {7, 9}) {
    (void)areas.begin(slot);
    areas.keep();
  }
  areas.forget();
  for (const std::uint64_t slot : {7, 9}) {
    REQUIRE_FALSE(areas.begin(slot).before);
    areas.keep();
  }
}

TEST_CASE("slot areas: calls out of order are bugs", "[unit][device]") {
  SlotAreas areas(1);
  REQUIRE_TRIPS(areas.keep());
  REQUIRE_TRIPS(areas.drop());
  (void)areas.begin(7);
  REQUIRE_TRIPS(areas.begin(7));
  REQUIRE_TRIPS(areas.forget());
}

TEST_CASE("slot areas: an area that is known has the sums of its Slot's last capture",
          "[unit][device]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    const std::size_t slots = 1 + random.next() % 4;
    SlotAreas areas(slots);
    std::vector<std::uint64_t> content(areas.count());  // Of each area: the capture it is of.
    std::map<std::uint64_t, std::uint64_t> holds;       // By Slot; none: it is not known.
    std::uint64_t known = 0;
    for (std::uint64_t capture = 1; capture <= 60; ++capture) {
      const std::uint64_t slot = 1 + random.next() % (slots + seed % 2);
      const auto pair = areas.begin(slot);
      REQUIRE(pair.before != pair.now);
      if (pair.before) REQUIRE(content[*pair.before] == holds.at(slot));
      // With an area more than there are Slots, none is forgotten.
      if (seed % 2 == 0) REQUIRE(pair.before.has_value() == holds.contains(slot));
      known += pair.before ? 1 : 0;
      content[pair.now] = capture;
      holds.erase(slot);
      if (random.next() % 4 == 0) {
        areas.drop();
        continue;
      }
      areas.keep();
      holds[slot] = capture;
      if (random.next() % 20 == 0) {
        areas.forget();
        holds.clear();
      }
    }
    REQUIRE(known > 10);
  }
}

}  // namespace ckpt::test
