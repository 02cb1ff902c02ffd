// Goal:   nodes that get other names while their daemons live agree and begin as before: each list
//         of nodes says anew who is who.
// Method: three engines whose ranks begin again and again, each time with other names for the same
//         hosts.
#include "unit/node/hosts.hpp"

namespace ckpt::node {
namespace {

bool begin_and_end(test::Hosts& hosts, const test::Hosts::Names& names,
                   const std::vector<std::size_t>& order) {
  const bool began = hosts.begin(names, order);
  hosts.detach_all();
  return began;
}

}  // namespace

TEST_CASE("renamed: nodes with new names begin again", "[unit][node]") {
  test::Hosts hosts({"left", "middle", "right"});
  REQUIRE(begin_and_end(hosts, {"A", "B", "C"}, {0, 1, 2}));
  CHECK(begin_and_end(hosts, {"X", "Y", "Z"}, {0, 1, 2}));
  CHECK(begin_and_end(hosts, {"A", "B", "C"}, {0, 1, 2}));
}

TEST_CASE("renamed: nodes that swap their names begin again", "[unit][node]") {
  test::Hosts hosts({"left", "middle", "right"});
  REQUIRE(begin_and_end(hosts, {"A", "B", "C"}, {0, 1, 2}));
  CHECK(begin_and_end(hosts, {"B", "C", "A"}, {2, 0, 1}));
  CHECK(begin_and_end(hosts, {"C", "B", "A"}, {0, 1, 2}));
  CHECK(begin_and_end(hosts, {"A", "B", "C"}, {1, 0, 2}));
}

}  // namespace ckpt::node
