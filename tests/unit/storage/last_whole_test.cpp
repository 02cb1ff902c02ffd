// Goal:   the newest of the steps that lack elements of the fewest tensors is the one that stays.
// Method: counts of tensors, the newest step's first.
#include "storage/last_whole.hpp"

#include <catch2/catch.hpp>

namespace ckpt::storage {

namespace {

constexpr std::optional<std::size_t> unread;

// One of the steps 9, 8, 7 ...; 0: none stays.
std::uint64_t chosen(const std::vector<std::optional<std::size_t>>& lacks) {
  LastWhole whole;
  std::uint64_t step = 9;
  for (const auto& tensors : lacks) {
    if (whole.is_found()) break;
    whole.add({1, Step{step--}}, tensors);
  }
  return whole.step() ? number(whole.step()->step) : 0;
}

}  // namespace

TEST_CASE("last whole: the newest of those that lack the least stays", "[unit][storage]") {
  CHECK(chosen({}) == 0);
  CHECK(chosen({0}) == 9);
  CHECK(chosen({2, 2, 2}) == 9);
  CHECK(chosen({2, 1, 1, 2}) == 8);
  CHECK(chosen({2, 1, 0, 0}) == 7);
  CHECK(chosen({1, unread, 0}) == 7);
  CHECK(chosen({unread, 3, 1}) == 7);
}

TEST_CASE("last whole: where no step can be read, the second stays beside the newest",
          "[unit][storage]") {
  CHECK(chosen({unread}) == 9);
  CHECK(chosen({unread, unread, unread}) == 8);
  LastWhole whole;
  CHECK_FALSE(whole.is_newest());
  whole.add({1, Step{9}}, unread);
  CHECK(whole.is_newest());
  whole.add({1, Step{8}}, unread);
  CHECK_FALSE(whole.is_newest());
  CHECK_FALSE(whole.is_found());
}

}  // namespace ckpt::storage
