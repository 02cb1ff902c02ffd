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

TEST_CASE("renamed: a daemon whose name another one has now keeps away", "[unit][node]") {
  test::Hosts hosts({"left", "middle", "right"});
  REQUIRE(begin_and_end(hosts, {"A", "B", "C"}, {0, 1, 2}));
  // Two of them begin again, and the third, which nobody uses any more, still calls itself B.
  const std::vector<Node> nodes = {{"A", "", "left:1"}, {"B", "", "right:1"}};
  for (const std::uint32_t rank : {0U, 1U}) {
    const std::size_t host = 2 * rank;
    AttachRequest request;
    request.job = "job";
    request.rank = rank;
    request.world_size = 2;
    request.nodes = nodes;
    request.node = nodes[rank].name;
    request.incarnation = 9;
    request.secret = "the secret of the job, 32 bytes.";
    hosts.ranks[host] = test::Rank();
    const auto attached = test::finish(
        hosts.clock,
        test::start(hosts.context, hosts.engines[host]->attach(request, hosts.ranks[host])));
    REQUIRE((attached ? "" : attached.error().message()) == "");
    hosts.ranks[host].session = attached->session;
    REQUIRE(hosts.engines[host]->call(attached->session, control::AskRestore{1, std::nullopt}));
  }
  REQUIRE(hosts.pass_until([&] { return hosts.ranks[0].answer && hosts.ranks[2].answer; }));
  const Time settled = hosts.clock.after(std::chrono::seconds(20));
  hosts.pass_until([&] { return hosts.clock.now() >= settled; });
  const Time end = hosts.clock.after(std::chrono::seconds(40));
  const auto reaches_another = [&] {
    const std::string status = hosts.engines[1]->status_json();
    const std::string live = "\"live\": true";
    return status.find(live) != status.rfind(live);  // It sees itself.
  };
  REQUIRE(hosts.has_job(1));
  CHECK_FALSE(hosts.pass_until([&] { return hosts.clock.now() < end && reaches_another(); }));
  CHECK(hosts.ranks[0].notice.degraded.empty());
}

TEST_CASE("renamed: nodes that swap their names begin again", "[unit][node]") {
  test::Hosts hosts({"left", "middle", "right"});
  REQUIRE(begin_and_end(hosts, {"A", "B", "C"}, {0, 1, 2}));
  CHECK(begin_and_end(hosts, {"B", "C", "A"}, {2, 0, 1}));
  CHECK(begin_and_end(hosts, {"C", "B", "A"}, {0, 1, 2}));
  CHECK(begin_and_end(hosts, {"A", "B", "C"}, {1, 0, 2}));
}

}  // namespace ckpt::node
