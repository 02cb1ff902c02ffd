// Goal:   the daemon keeps off the cores that trainers are bound to, never has none, and stays
//         within its own.
// Method: the rule on sets of a machine with eight cores. tests/unit/client tries it on processes.
#include "daemon/core_share.hpp"

#include <catch2/catch.hpp>

namespace ckpt::daemon {
namespace {

os::CoreSet cores(std::initializer_list<std::size_t> numbers) {
  os::CoreSet set;
  for (const std::size_t number : numbers) set.set(number);
  return set;
}

const os::CoreSet all = cores({0, 1, 2, 3, 4, 5, 6, 7});

}  // namespace

TEST_CASE("core share: the cores of bound trainers are left to them", "[unit][daemon]") {
  CHECK(cores_beside(all, {}) == all);
  CHECK(cores_beside(all, {cores({0, 1})}) == cores({2, 3, 4, 5, 6, 7}));
  CHECK(cores_beside(all, {cores({0, 1}), cores({1, 2}), cores({7})}) == cores({3, 4, 5, 6}));
}

TEST_CASE("core share: a trainer that may run everywhere claims nothing", "[unit][daemon]") {
  CHECK(cores_beside(all, {all}) == all);
  CHECK(cores_beside(all, {all, cores({3})}) == cores({0, 1, 2, 4, 5, 6, 7}));
  CHECK(cores_beside(cores({2, 3}), {all, cores({2, 3, 4})}) == cores({2, 3}));
}

TEST_CASE("core share: where nothing would be left it is all of them", "[unit][daemon]") {
  CHECK(cores_beside(all, {cores({0, 1, 2, 3}), cores({4, 5, 6, 7})}) == all);
  CHECK(cores_beside(cores({5}), {cores({5})}) == cores({5}));
}

TEST_CASE("core share: a daemon that was given some cores stays on them", "[unit][daemon]") {
  CHECK(cores_beside(cores({0, 1}), {cores({1, 2, 3})}) == cores({0}));
  CHECK(cores_beside(cores({0, 1}), {cores({6, 7})}) == cores({0, 1}));
}

}  // namespace ckpt::daemon
