// Goal:   while nothing changes, nodes say nothing but small beats, and only to those that may
//         coordinate them; a busy engine stays alive for its peers, and one that hangs does not; a
//         node that stood still as a whole believes nothing that it heard before.
// Method: engines over a network in memory that counts bytes. For the busy one, its lines run on a
//         context of their own, which goes on while the engine's stands still.
#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "node/engine.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "support/sim_network.hpp"
#include "unit/node/rank.hpp"
#include "wire/frame.hpp"

namespace ckpt::node {
namespace {

constexpr Duration beat = std::chrono::milliseconds(500);

// LineNode: an engine with one rank that begins fresh; its lines run on a context of their own.
struct LineNode {
  LineNode(test::SimNetwork& network, test::MemoryDisk& disk, const std::vector<Node>& nodes,
           std::uint32_t number, std::uint64_t boot)
      : files(disk, &clock), front(network.add_node(nodes[number].name, line_clock)) {
    EngineOptions options;
    options.name = nodes[number].name;
    options.boot = boot;
    options.memory_budget = MiB;
    engine = std::make_unique<Engine>(
        context->get_executor(),
        Seams{clock, memory, files, *front, nullptr,
              LineSeams{line_context->get_executor(), &line_clock, front.get()}},
        options);
    AttachRequest request;
    request.job = "job";
    request.rank = number;
    request.world_size = static_cast<std::uint32_t>(nodes.size());
    request.nodes = nodes;
    request.node = options.name;
    request.secret = "the secret of all nodes, long enough to be one";
    attached.emplace(test::start(*context, engine->attach(request, rank)));
    clock.poll();
    REQUIRE(attached->result());
    REQUIRE(engine->call(attached->result()->session, control::StartFresh{1}));
  }
  ~LineNode() {  // As a kill: what is suspended dies where it stands.
    line_context.reset();
    context.reset();
  }
  void pass(Duration time, bool with_engine) {
    line_clock.advance(time);
    if (with_engine) clock.advance(line_clock.now() - clock.now());
  }
  // As a process that was stopped until `now` and goes on: all that is due is due at once.
  void wake_at(Time now, bool engine_runs_first) {
    const auto lines = [&] { line_clock.jump(now - line_clock.now()); };
    const auto engine_too = [&] { clock.jump(now - clock.now()); };
    if (engine_runs_first) engine_too();
    lines();
    if (!engine_runs_first) engine_too();
    clock.poll();  // The news from the lines.
  }
  void close() {
    REQUIRE(engine->call(attached->result()->session, control::Close{std::chrono::hours(1)}));
  }
  nlohmann::json job() const { return nlohmann::json::parse(engine->status_json())["jobs"].at(0); }
  bool sees(const std::string& node) const {
    const auto status = job();
    for (const auto& it : status["nodes"]) {
      if (it["name"] == node) return it["live"];
    }
    return false;
  }

  std::unique_ptr<asio::io_context> line_context = std::make_unique<asio::io_context>();
  std::unique_ptr<asio::io_context> context = std::make_unique<asio::io_context>();
  test::FakeClock line_clock{*line_context}, clock{*context};
  test::NoMemory memory;
  test::MemoryFileSystem files;
  std::unique_ptr<wire::Network> front;
  test::Rank rank;
  std::unique_ptr<Engine> engine;
  std::optional<test::Pending<Attached>> attached;
};

struct LineNodes {
  explicit LineNodes(std::uint32_t count) {
    for (std::uint32_t number = 0; number < count; ++number) {
      const std::string name(1, static_cast<char>('A' + number));
      list.push_back({name, "", name + ":1"});
    }
    for (std::uint32_t number = 0; number < count; ++number) start(number);
  }
  ~LineNodes() {
    for (const Node& node : list) network.kill(node.name);
  }
  void start(std::uint32_t number) {
    const bool is_first = nodes.size() <= number;
    if (is_first) nodes.resize(number + 1);
    auto& node = nodes[number];
    node = std::make_unique<LineNode>(network, disk, list, number, ++boots);
    const Duration behind = now - node->line_clock.now();
    if (behind > Duration::zero()) node->pass(behind, true);
  }
  void pass(Duration time, const LineNode* stands_still = nullptr) {
    constexpr Duration tick = std::chrono::milliseconds(1);
    for (Duration passed{}; passed < time; passed += tick) {
      for (auto& node : nodes) node->pass(tick, node.get() != stands_still);
    }
    now = nodes.front()->line_clock.now();
  }
  // All but one: neither its engine nor its lines run.
  void pass_without(const LineNode& stopped, Duration time) {
    for (Duration passed{}; passed < time; passed += beat / 10) {
      for (auto& node : nodes)
        if (node.get() != &stopped) node->pass(beat / 10, true);
    }
    now += time;
  }
  std::uint64_t bytes(const char* from, const char* to) const {
    return network.bytes_delivered(from, to);
  }

  test::SimNetwork network{1};
  test::MemoryDisk disk{1};
  std::vector<Node> list;
  std::vector<std::unique_ptr<LineNode>> nodes;
  std::uint64_t boots = 0;
  Time now{};
};

}  // namespace

TEST_CASE("lines: while nothing changes there are beats, and only with those that may coordinate",
          "[unit][node]") {
  LineNodes cluster(6);
  cluster.pass(std::chrono::seconds(20));
  for (const auto& node : cluster.nodes) {
    REQUIRE(node->rank.answer);  // All have begun, so that the coordinator has heard all.
    CHECK(node->job()["coordinator"] == "A");
  }
  // Only the coordinator hears a node that stands behind it and its successors.
  CHECK(cluster.bytes("E", "F") + cluster.bytes("F", "E") == 0);
  CHECK(cluster.nodes[5]->sees("E"));
  const std::uint64_t up = cluster.bytes("F", "A"), down = cluster.bytes("A", "F");
  const std::uint64_t aside = cluster.bytes("F", "C");
  constexpr int beats = 20;
  cluster.pass(beats * beat);
  const std::uint64_t most = (beats + 1) * wire::frame_header_bytes;
  CHECK(cluster.bytes("F", "A") - up <= most);
  CHECK(cluster.bytes("A", "F") - down <= most);
  CHECK(cluster.bytes("F", "C") - aside <= most);
  CHECK(cluster.bytes("F", "A") > up);
}

TEST_CASE("lines: a coordinator that was started anew learns all that was stated before",
          "[unit][node]") {
  LineNodes cluster(3);
  cluster.pass(std::chrono::seconds(10));
  REQUIRE(cluster.nodes[2]->rank.answer);
  cluster.network.kill("A");
  cluster.pass(std::chrono::seconds(5));
  CHECK(cluster.nodes[2]->job()["coordinator"] == "B");
  cluster.start(0);
  cluster.pass(std::chrono::seconds(10));
  const auto seen = cluster.nodes[0]->job();
  CHECK(seen["coordinator"] == "A");
  CHECK(seen["ranks_missing"].empty());
  CHECK(cluster.nodes[2]->job()["coordinator"] == "A");
}

TEST_CASE("lines: a busy engine stays alive for its peers, and one that hangs is lost",
          "[unit][node]") {
  LineNodes cluster(2);
  cluster.pass(std::chrono::seconds(10));
  REQUIRE(cluster.nodes[0]->sees("B"));
  REQUIRE(cluster.nodes[1]->sees("A"));
  SECTION("of the coordinator") {
    const LineNode* busy = cluster.nodes[0].get();
    cluster.pass(std::chrono::seconds(20), busy);
    CHECK(cluster.nodes[1]->job()["coordinator"] == "A");
    cluster.pass(std::chrono::seconds(15), busy);
    CHECK(cluster.nodes[1]->job()["coordinator"] == "B");
    cluster.pass(std::chrono::seconds(8));
    CHECK(cluster.nodes[1]->job()["coordinator"] == "A");
  }
  SECTION("of another node") {
    const LineNode* busy = cluster.nodes[1].get();
    cluster.pass(std::chrono::seconds(20), busy);
    CHECK(cluster.nodes[0]->sees("B"));
    cluster.pass(std::chrono::seconds(15), busy);
    CHECK_FALSE(cluster.nodes[0]->sees("B"));
    cluster.pass(std::chrono::seconds(8));
    CHECK(cluster.nodes[0]->sees("B"));
    CHECK(cluster.nodes[0]->job()["ranks_missing"].empty());
  }
}

TEST_CASE("lines: a node that stood still begins anew with all others", "[unit][node]") {
  LineNodes cluster(3);
  cluster.pass(std::chrono::seconds(10));
  LineNode& stopped = *cluster.nodes[0];
  REQUIRE(stopped.rank.answer);
  const bool engine_runs_first = GENERATE(false, true);
  SECTION("for as long as makes it lost") {
    cluster.pass_without(stopped, std::chrono::seconds(4));
    REQUIRE(cluster.nodes[2]->job()["coordinator"] == "B");
    stopped.wake_at(cluster.now, engine_runs_first);
    CHECK_FALSE(stopped.sees("B"));
    CHECK_FALSE(stopped.sees("C"));
    CHECK(stopped.job()["degraded"] == nullptr);  // They are not lost; they may be on their way.
    cluster.pass(std::chrono::seconds(2));
    CHECK(stopped.sees("B"));
    CHECK(cluster.nodes[1]->job()["coordinator"] == "A");
  }
  SECTION("and ends nothing, where the others had said that they end") {
    for (const std::size_t other : {1, 2}) cluster.nodes[other]->close();
    cluster.pass(std::chrono::seconds(1));
    cluster.pass_without(stopped, std::chrono::seconds(4));
    // The news from the lines comes later than that of our own rank.
    stopped.clock.jump(cluster.now - stopped.clock.now());
    stopped.close();
    stopped.clock.poll();
    CHECK_FALSE(stopped.rank.end.has_value());
    stopped.wake_at(cluster.now, engine_runs_first);
    cluster.pass(std::chrono::seconds(3));
    CHECK(stopped.rank.end.has_value());
  }
  SECTION("for less") {
    cluster.pass_without(stopped, std::chrono::milliseconds(1400));
    stopped.wake_at(cluster.now, engine_runs_first);
    CHECK(stopped.sees("B"));
    CHECK(stopped.sees("C"));
    cluster.pass(std::chrono::seconds(1));
    CHECK(cluster.nodes[1]->job()["coordinator"] == "A");
  }
}

}  // namespace ckpt::node
