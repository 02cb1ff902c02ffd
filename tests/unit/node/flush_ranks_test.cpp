// Goal:   the ranks of one node are written to storage together, a few at a time, and all of them.
// Method: engines on a simulated network and a disk in memory, which records its operations.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "unit/node/worlds.hpp"

namespace ckpt::node {

namespace {

// Where the creation of the rank's first file stands, and its last sync.
struct Operations {
  std::ptrdiff_t first = 0, last = 0;
};
Operations operations_of(const std::vector<std::string>& log, std::uint32_t rank) {
  const auto is_on_it = [&](const std::string& line, std::string_view verb) {
    return line.starts_with(verb) && line.find("/.step-") != std::string::npos &&
           line.find(fmt::format("/rank-{:05}.", rank)) != std::string::npos;
  };
  const auto is_first = [&](const std::string& line) { return is_on_it(line, "create "); };
  const auto is_sync = [&](const std::string& line) { return is_on_it(line, "sync_data "); };
  const auto first = std::ranges::find_if(log, is_first);
  const auto last = std::find_if(log.rbegin(), log.rend(), is_sync);
  REQUIRE(first != log.end());
  return {first - log.begin(), log.rend() - last};
}

}  // namespace

TEST_CASE("flush: the ranks of a node are written together", "[unit][node]") {
  test::Rules rules;
  rules.directory = "/scratch";
  test::Cluster cluster;
  cluster.begin("AAAAAA", rules);
  cluster.disk().clear_log();
  cluster.store(Step{5});
  const std::vector<std::string> log = cluster.disk().log();
  const Operations one = operations_of(log, 0);
  for (const std::uint32_t rank : {1u, 2u, 3u}) {
    CAPTURE(rank);
    CHECK(operations_of(log, rank).first < one.last);
  }
  // The others wait until one of these has ended.
  std::ptrdiff_t first_end = one.last;
  for (const std::uint32_t rank : {1u, 2u, 3u})
    first_end = std::min(first_end, operations_of(log, rank).last);
  CHECK(operations_of(log, 4).first > first_end);
  cluster.end_world();
  cluster.lose("A");
  rules.has_old_list = true;
  cluster.begin("BBBBBB", rules);
  cluster.check_restored(Step{5}, 6);
}

}  // namespace ckpt::node
