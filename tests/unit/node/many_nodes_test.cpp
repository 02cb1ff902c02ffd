// Goal:   of a job of many nodes each talks to few: at a cold start nobody dials all others, a
//         restore asks those that hold a shard and then storage, and a node that was started again
//         is noticed also by those that have no line to it.
// Method: engines of one rank each over a network in memory whose dials are counted.
#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <deque>
#include <map>

#include "base/units.hpp"
#include "node/engine.hpp"
#include "support/heap_memory.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "support/sim_network.hpp"
#include "unit/node/rank.hpp"

namespace ckpt::node {
namespace {

constexpr std::uint64_t many_nodes_bytes = 256 * KiB;

// Dials: how often this node has dialed each address.
class CountedNetwork final : public wire::Network {
 public:
  explicit CountedNetwork(std::unique_ptr<wire::Network> below) : below_(std::move(below)) {}
  Task<std::unique_ptr<wire::Listener>> listen(std::string address, Time deadline) override {
    return below_->listen(std::move(address), deadline);
  }
  Task<std::shared_ptr<wire::Connection>> connect(std::string address, Time deadline) override {
    ++dials[address];
    return below_->connect(std::move(address), deadline);
  }
  std::size_t all() const {
    std::size_t sum = 0;
    for (const auto& [address, times] : dials) sum += times;
    return sum;
  }

  std::map<std::string, std::size_t> dials;

 private:
  std::unique_ptr<wire::Network> below_;
};

struct AnsweringTrainer final : test::Rank {
  void offered(control::Offer offer) override {
    source = offer.source_name;
    asio::post(*context, [this, number = offer.offer] {
      REQUIRE(engine->call(session, control::RestoreResult{number, {}}));
    });
  }

  asio::io_context* context = nullptr;
  Engine* engine = nullptr;
  std::string source;  // The newest offer's.
};

struct CountedNode {
  std::unique_ptr<CountedNetwork> front;
  std::unique_ptr<Engine> engine;
  AnsweringTrainer trainer;
};

// Nodes A, B, C and so on, with a rank each.
struct ManyNodes {
  ManyNodes(std::size_t count, std::uint32_t replicas, std::string dir = "") {
    disk.put_directory("/scratch");
    for (std::size_t number = 0; number < count; ++number) {
      const std::string name = count > 26 ? fmt::format("n{:04}", number)
                                          : std::string(1, static_cast<char>('A' + number));
      request.nodes.push_back({name, "", name + ":1"});
    }
    request.job = "job";
    request.dir = std::move(dir);
    request.world_size = static_cast<std::uint32_t>(count);
    request.replicas = replicas;
    request.own_slots = 4;
    request.secret = "the secret of all nodes, long enough to be one";
    request.save_storage_interval.steps = 1;
    nodes.resize(count);
  }
  ~ManyNodes() {
    for (CountedNode& node : nodes) stop(node);
    clock.advance(std::chrono::seconds(10));
  }
  // Attaches its rank; it does not begin yet.
  CountedNode& open(std::size_t number) {
    CountedNode& node = nodes[number];
    const std::string name = request.nodes[number].name;
    node.front = std::make_unique<CountedNetwork>(network.add_node(name, clock));
    EngineOptions options;
    options.name = name;
    options.boot = ++boots;
    options.memory_budget = 16 * MiB;
    node.engine = std::make_unique<Engine>(context.get_executor(),
                                           Seams{clock, memory, files, *node.front}, options);
    node.trainer = AnsweringTrainer{};
    node.trainer.context = &context;
    node.trainer.engine = node.engine.get();
    AttachRequest own = request;
    own.rank = static_cast<std::uint32_t>(number);
    own.node = name;
    auto attached =
        test::finish(clock, test::start(context, node.engine->attach(own, node.trainer)));
    REQUIRE(attached);
    node.trainer.session = attached->session;
    const format::TensorSpec spec{"weight", DType::u8, {many_nodes_bytes}, "", ""};
    auto layout = format::make_layout(std::span(&spec, 1), own.rank, 0, 1);
    REQUIRE(layout);
    REQUIRE(node.engine->call(node.trainer.session, control::SetLayout{*layout}));
    return node;
  }
  void stop(CountedNode& node) {
    if (!node.engine) return;
    (void)test::finish(clock, test::start(context, node.engine->stop(std::chrono::seconds(5))));
    node.engine.reset();
  }
  void kill(std::size_t number) {
    stop(nodes[number]);
    network.kill(request.nodes[number].name);
  }
  void begin_all() {
    for (std::size_t number = 0; number < nodes.size(); ++number) {
      AnsweringTrainer& trainer = open(number).trainer;
      REQUIRE(trainer.engine->call(trainer.session, control::StartFresh{1}));
    }
    REQUIRE(all_of([](const AnsweringTrainer& trainer) { return trainer.granted.size() >= 2; }));
  }
  void capture_on_all(Step step) {
    for (CountedNode& node : nodes) {
      REQUIRE(node.trainer.capture_in(*node.engine, step));
    }
  }
  // Those of `started` are engines that know nothing.
  void restore_all(const std::vector<std::size_t>& started) {
    for (const std::size_t number : started) kill(number);
    for (const std::size_t number : started) open(number);
    for (CountedNode& node : nodes) {
      node.front->dials.clear();
      node.trainer.answer.reset();
      REQUIRE(node.engine->call(node.trainer.session, control::AskRestore{2, std::nullopt}));
    }
    REQUIRE(all_of([](const AnsweringTrainer& trainer) { return trainer.answer.has_value(); }));
  }
  template <class Claim>
  bool all_of(Claim claim) {
    return pass_until([&] {
      return std::all_of(nodes.begin(), nodes.end(),
                         [&](const CountedNode& node) { return claim(node.trainer); });
    });
  }
  template <class Claim>
  bool pass_until(Claim claim) {
    const Time limit = clock.after(std::chrono::minutes(2));
    clock.poll();
    while (!claim() && clock.now() < limit && clock.advance_to_next()) {
    }
    return claim();
  }

  asio::io_context context;
  test::FakeClock clock{context};
  test::HeapSource memory;
  test::MemoryDisk disk{1};
  test::MemoryFileSystem files{disk, &clock};
  test::SimNetwork network{1};
  AttachRequest request;
  std::deque<CountedNode> nodes;
  std::uint64_t boots = 0;
};

}  // namespace

TEST_CASE("many nodes: a restore from storage dials nobody for it", "[unit][node]") {
  ManyNodes world(6, 1, "/scratch/job");
  world.begin_all();
  world.capture_on_all(Step{1});
  REQUIRE(world.all_of([](const AnsweringTrainer& trainer) { return trainer.durable == Step{1}; }));
  world.restore_all({0, 1, 2, 3, 4, 5});
  for (const CountedNode& node : world.nodes) {
    CHECK(node.trainer.answer->restored->step == Step{1});
    CHECK(node.trainer.source == "storage");
    // Control lines go to the first three nodes. Without replicas there is nothing else to say.
    for (const char* behind : {"D:1", "E:1", "F:1"})
      CHECK_FALSE(node.front->dials.contains(behind));
  }
}

TEST_CASE("many nodes: a restore asks the node that holds the shard, and no other",
          "[unit][node]") {
  ManyNodes world(6, 2);
  world.begin_all();
  world.capture_on_all(Step{1});
  REQUIRE(
      world.all_of([](const AnsweringTrainer& trainer) { return trainer.committed == Step{1}; }));
  world.restore_all({4});
  const CountedNode& returned = world.nodes[4];
  CHECK(returned.trainer.answer->restored->step == Step{1});
  REQUIRE(returned.trainer.source.starts_with("node "));
  const std::string holder = returned.trainer.source.substr(5) + ":1";
  CHECK(returned.front->dials.contains(holder));
  std::size_t behind = 0;  // Of D and F one may be the holder, or be given a copy.
  for (const char* node : {"D:1", "F:1"}) behind += returned.front->dials.contains(node);
  CHECK(behind <= 1);
  for (const std::size_t number : {0, 1, 2, 3, 5})
    CHECK(world.nodes[number].trainer.source == "own memory");
}

TEST_CASE("many nodes: a restarted node gets its copy anew, also from one without a line",
          "[unit][node]") {
  ManyNodes world(8, 2);
  world.begin_all();
  world.capture_on_all(Step{1});
  REQUIRE(
      world.all_of([](const AnsweringTrainer& trainer) { return trainer.committed == Step{1}; }));
  // Nodes behind the first three have no lines to one another.
  std::size_t giver = 3, keeper = 0;
  const auto name = [&](std::size_t number) { return world.request.nodes[number].name; };
  const auto has_given = [&](std::size_t from, std::size_t to) {
    return from != to && world.network.bytes_delivered(name(from), name(to)) >= many_nodes_bytes;
  };
  for (std::size_t from = 3; from < 8; ++from) {
    for (std::size_t to = 3; to < 8; ++to) {
      if (has_given(from, to)) std::tie(giver, keeper) = std::tie(from, to);
    }
  }
  REQUIRE(keeper != 0);
  world.kill(keeper);
  const std::uint64_t before = world.network.bytes_delivered(name(giver), name(keeper));
  world.open(keeper);
  CHECK(world.pass_until([&] {
    return world.network.bytes_delivered(name(giver), name(keeper)) >= before + many_nodes_bytes;
  }));
}

TEST_CASE("many nodes: at a cold start nobody dials more than the first", "[unit][node]") {
  ManyNodes world(24, 1);
  for (std::size_t number = 0; number < world.nodes.size(); ++number) world.open(number);
  world.clock.advance(std::chrono::seconds(20));
  for (const CountedNode& node : world.nodes) CHECK(node.front->dials.size() <= 3);
}

TEST_CASE("many nodes: one that is alone dials few in a second", "[unit][node]") {
  ManyNodes world(400, 1);
  CountedNode& last = world.open(399);
  world.clock.advance(std::chrono::seconds(20));
  CHECK(last.front->dials.size() == 399);  // It looks for all of them,
  const std::size_t before = last.front->all();
  constexpr std::size_t seconds = 60;
  world.clock.advance(std::chrono::seconds(seconds));
  CHECK(last.front->all() - before <= seconds * 100);  // though not all the time.
}

}  // namespace ckpt::node
