// Goal:   a rank is where its trainer is.
// Method: reports of two nodes that claim one rank, in both orders.
#include "agree/cluster_view.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

namespace ckpt::agree {

TEST_CASE("cluster view: a trainer that has closed gives way to one on another node",
          "[unit][agree]") {
  const auto claim = [](std::string node, std::uint64_t session, bool is_closing) {
    format::RankReport rank;
    rank.session = session;
    rank.is_closing = is_closing;
    format::NodeReport report;
    report.node = std::move(node);
    report.ranks.push_back(rank);
    return report;
  };
  ClusterView view;
  view.shape.world_size = 1;
  view.reports = {claim("A", 1, true), claim("B", 2, false)};
  for (int order = 0; order < 2; ++order) {
    const auto ranks = ranks_of(view);
    REQUIRE(ranks.size() == 1);
    CHECK_FALSE(ranks[0].is_doubled);
    CHECK(ranks[0].report->session == 2);
    CHECK(ranks[0].node->node == "B");
    std::ranges::reverse(view.reports);
  }
  view.reports = {claim("A", 1, false), claim("B", 2, false)};
  CHECK(ranks_of(view)[0].is_doubled);
  view.reports = {claim("A", 1, true), claim("B", 2, true)};
  CHECK(ranks_of(view)[0].is_doubled);
}

}  // namespace ckpt::agree
