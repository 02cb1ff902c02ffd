// Goal:   a step that one number of ranks saved is restored by another one straight from memory:
//         each rank gets its part of the tensor, whoever had it, also after a loss, after damage
//         and twice in a row; the step stays until the new ranks have committed one of their own.
// Method: engines of several nodes on a simulated network. The ranks of each world divide one
//         tensor evenly; every number of an offer is compared with what was saved.
#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/units.hpp"
#include "format/piece.hpp"
#include "node/engine.hpp"
#include "support/heap_memory.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "support/sim_network.hpp"
#include "unit/node/rank.hpp"

namespace ckpt::node {
namespace {

constexpr std::uint64_t numbers_in_all = 120 * 256;
constexpr std::uint64_t blob_capacity = 64;

std::uint32_t number_at(Step step, std::uint64_t place) {
  return static_cast<std::uint32_t>(number(step) * 1'000'000 + place);
}

FlatRange part_of(std::uint32_t rank, std::uint32_t world_size) {
  const std::uint64_t begin = numbers_in_all * rank / world_size;
  return {begin, numbers_in_all * (rank + 1) / world_size - begin};
}

format::Layout layout_of(std::uint32_t rank, std::uint32_t world_size, bool has_whole_tensor) {
  const FlatRange part = part_of(rank, world_size);
  std::vector<format::TensorSpec> specs(1);
  specs[0].name = "weight";
  specs[0].dtype = DType::u32;
  specs[0].shape = {static_cast<std::int64_t>(part.count)};
  Piece piece;
  piece.global_shape = {numbers_in_all};
  piece.flat_begin = part.begin;
  specs[0].piece = format::normalized(piece, specs[0].shape);
  if (has_whole_tensor) {
    specs.emplace_back();
    specs[1].name = fmt::format("of rank {}", rank);
    specs[1].dtype = DType::u32;
    specs[1].shape = {256};
  }
  auto layout = format::make_layout(specs, rank, blob_capacity);
  REQUIRE((layout ? "" : layout.error().message()) == "");
  return *layout;
}

struct Trainer final : test::Rank {
  void offered(control::Offer it) override {
    const auto bytes = slots.at(it.slot).memory->bytes();
    const format::ShardRecord& record = *it.record;
    offer = it;
    whole_tensors.clear();
    for (const format::TensorPlace& tensor : record.layout.tensors) {
      std::vector<std::uint32_t> numbers(tensor.extent.bytes / 4);
      std::memcpy(numbers.data(), bytes.data() + tensor.extent.offset, tensor.extent.bytes);
      if (tensor.name == "weight") {
        weight = numbers;
      } else {
        whole_tensors[tensor.name] = numbers;
      }
    }
    blob_of.reset();
    if (!record.blobs.empty()) blob_of = static_cast<std::uint32_t>(bytes[record.blobs[0].offset]);
    CHECK(engine->call(session, control::RestoreResult{it.offer, {}}));
  }
  std::uint32_t rank = 0;
  Engine* engine = nullptr;
  std::optional<control::Offer> offer;
  std::uint32_t last_slot = 0;  // That it captured in.
  std::vector<std::uint32_t> weight;
  std::map<std::string, std::vector<std::uint32_t>> whole_tensors;
  std::optional<std::uint32_t> blob_of;  // The rank whose blobs came.
};

struct Rules {
  std::string directory = {};
  bool has_whole_tensors = false;
  bool joins_shards = false;
  std::uint64_t budget = 64 * MiB;
  std::uint32_t replicas = 2;
  std::optional<Step> wanted = std::nullopt;
  bool is_at_once = false;  // No time passes between the end of the world before and this one.
};

// Nodes keep their memory while worlds come and go.
class Cluster {
 public:
  Cluster() { disk_.put_directory("/scratch"); }
  ~Cluster() {
    end_world();
    for (auto& [name, node] : nodes_) stop(node);
    clock_.advance(std::chrono::seconds(10));
  }

  // One rank for each letter, on the node of that name. All ask for a restore.
  void ask(const std::string& places, Rules rules = {}) {
    end_world(rules.is_at_once ? std::chrono::seconds(0) : std::chrono::seconds(1));
    rules_ = rules;
    ++incarnation_;
    std::vector<Node> members;
    for (const char letter : places) {
      const std::string name(1, letter);
      const bool is_new = std::ranges::find(members, name, &Node::name) == members.end();
      if (is_new) members.push_back({name, "", name + ":1"});
      if (!nodes_.contains(name)) open(name, rules.budget);
    }
    const auto world_size = static_cast<std::uint32_t>(places.size());
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      auto trainer = std::make_unique<Trainer>();
      trainer->rank = rank;
      trainer->engine = nodes_.at(std::string(1, places[rank])).engine.get();
      AttachRequest request;
      request.job = "job";
      request.dir = rules.directory;
      request.rank = rank;
      request.world_size = world_size;
      request.replicas = rules.replicas;
      request.nodes = members;
      request.node = std::string(1, places[rank]);
      request.incarnation = incarnation_;
      request.secret = "the secret of all nodes, long enough to be one";
      auto attached =
          test::finish(clock_, test::start(context_, trainer->engine->attach(request, *trainer)));
      REQUIRE((attached ? "" : attached.error().message()) == "");
      trainer->session = attached->session;
      const format::Layout layout = layout_of(rank, world_size, rules.has_whole_tensors);
      REQUIRE(trainer->engine->call(trainer->session, control::SetLayout{layout}));
      REQUIRE(trainer->engine->call(trainer->session,
                                    control::AskRestore{1, rules.wanted, rules.joins_shards}));
      ranks_.push_back(std::move(trainer));
    }
  }
  // The same, and all have begun.
  void begin(const std::string& places, Rules rules = {}) {
    ask(places, std::move(rules));
    REQUIRE(pass_until([&] { return have_answers(); }));
    for (const auto& trainer : ranks_)
      REQUIRE((trainer->answer->result ? "" : trainer->answer->result.error().message()) == "");
  }
  bool have_answers() const {
    return std::ranges::all_of(ranks_, [](const auto& it) { return it->answer.has_value(); });
  }

  void capture(Step step) {
    REQUIRE(pass_until([&] {
      return std::ranges::none_of(ranks_, [](auto& it) { return it->granted.empty(); });
    }));
    for (const auto& trainer : ranks_) capture(*trainer, step);
  }
  void capture(Trainer& trainer, Step step) {
    const std::uint32_t slot = trainer.last_slot = trainer.granted.front();
    trainer.granted.pop_front();
    REQUIRE(trainer.engine->call(trainer.session, trainer.begin_of(slot, step)));
    const auto world_size = static_cast<std::uint32_t>(ranks_.size());
    const format::Layout layout = layout_of(trainer.rank, world_size, rules_.has_whole_tensors);
    const std::span<std::byte> bytes = trainer.slots.at(slot).memory->bytes();
    for (const format::TensorPlace& tensor : layout.tensors) {
      const bool is_weight = tensor.name == "weight";
      const std::uint64_t first = is_weight ? part_of(trainer.rank, world_size).begin : 0;
      for (std::uint64_t index = 0; index < tensor.extent.bytes / 4; ++index) {
        const std::uint32_t value =
            is_weight ? number_at(step, first + index) : 1000 * trainer.rank + 7;
        std::memcpy(bytes.data() + tensor.extent.offset + 4 * index, &value, 4);
      }
    }
    control::Filled filled = trainer.filled_of(slot, step);
    filled.layout_version = layout.version;
    filled.chunk_bytes = 64 * KiB;
    filled.blob_bytes = 1;
    const format::Extent blobs = layout.members.at(*format::blob_member(layout)).extent;
    filled.blobs = {{blobs.offset, 1}};
    filled.blob_names = {"rank"};
    bytes[blobs.offset] = static_cast<std::byte>(trainer.rank);
    REQUIRE(trainer.engine->call(trainer.session, std::move(filled)));
  }
  // Changes a byte of the rank's own copy, behind the engine's back.
  void damage(std::size_t of_rank) {
    Trainer& trainer = *ranks_.at(of_rank);
    const format::Layout layout =
        layout_of(trainer.rank, static_cast<std::uint32_t>(ranks_.size()), false);
    const auto bytes = trainer.slots.at(trainer.last_slot).memory->bytes();
    bytes[layout.tensors.at(0).extent.offset] ^= std::byte{1};
  }
  void commit(Step step) {
    capture(step);
    REQUIRE(pass_until([&] {
      return std::ranges::all_of(ranks_, [&](auto& it) { return it->committed >= step; });
    }));
  }

  // Every rank has exactly its part of what was saved at `step` by `saved_by` ranks.
  void check_restored(Step step, std::uint32_t saved_by) {
    const auto world_size = static_cast<std::uint32_t>(ranks_.size());
    for (const auto& trainer : ranks_) {
      CAPTURE(trainer->rank, world_size, saved_by);
      REQUIRE(trainer->answer->restored);
      CHECK(trainer->answer->restored->step == step);
      REQUIRE(trainer->offer);
      CHECK(trainer->offer->saved_by == saved_by);
      const FlatRange part = part_of(trainer->rank, world_size);
      REQUIRE(trainer->weight.size() == part.count);
      bool is_same = true;
      for (std::uint64_t index = 0; index < part.count; ++index)
        is_same = is_same && trainer->weight[index] == number_at(step, part.begin + index);
      CHECK(is_same);
      CHECK(trainer->blob_of == trainer->rank % saved_by);
    }
  }

  void end_world(std::chrono::seconds pause = std::chrono::seconds(1)) {
    for (const auto& trainer : ranks_) trainer->engine->detach(trainer->session);
    ranks_.clear();
    if (pause.count() > 0) clock_.advance(pause);
  }
  void lose(const std::string& name) {
    std::erase_if(ranks_, [&](auto& it) { return it->engine == nodes_.at(name).engine.get(); });
    stop(nodes_.at(name));
    nodes_.erase(name);
  }
  template <class Claim>
  bool pass_until(Claim claim) {
    const Time limit = clock_.after(std::chrono::minutes(2));
    clock_.poll();
    while (!claim() && clock_.now() < limit && clock_.advance_to_next()) {
    }
    return claim();
  }
  // Those that have Slots of their own on the node.
  std::set<std::uint32_t> ranks_with_slots(const std::string& name) {
    std::set<std::uint32_t> ranks;
    const nlohmann::json job = status(name);
    for (const auto& slot : job.at("slots"))
      if (slot.at("own")) ranks.insert(slot.at("rank").get<std::uint32_t>());
    return ranks;
  }
  nlohmann::json status(const std::string& name) {
    return nlohmann::json::parse(nodes_.at(name).engine->status_json()).at("jobs").at(0);
  }
  void flush(Step step) {
    for (const auto& trainer : ranks_)
      REQUIRE(trainer->engine->call(trainer->session, control::Flush{step}));
  }
  Trainer& rank(std::size_t index) { return *ranks_.at(index); }

 private:
  struct OneNode {
    std::unique_ptr<wire::Network> front;
    std::unique_ptr<Engine> engine;
  };
  void open(const std::string& name, std::uint64_t budget) {
    OneNode& node = nodes_[name];
    node.front = network_.add_node(name, clock_);
    EngineOptions options;
    options.name = name;
    options.boot = ++boots_;
    options.memory_budget = budget;
    node.engine = std::make_unique<Engine>(context_.get_executor(),
                                           Seams{clock_, memory_, files_, *node.front}, options);
  }
  void stop(OneNode& node) {
    if (!node.engine) return;
    (void)test::finish(clock_, test::start(context_, node.engine->stop(std::chrono::seconds(5))));
    node.engine.reset();
  }

  asio::io_context context_;
  test::FakeClock clock_{context_};
  test::HeapSource memory_;
  test::MemoryDisk disk_{1};
  test::MemoryFileSystem files_{disk_, &clock_};
  test::SimNetwork network_{1};
  std::map<std::string, OneNode> nodes_;
  std::vector<std::unique_ptr<Trainer>> ranks_;
  Rules rules_;
  std::uint64_t incarnation_ = 0;
  std::uint64_t boots_ = 0;
};

}  // namespace

TEST_CASE("other world: any number of ranks gets its parts from memory", "[unit][node]") {
  const std::string places = GENERATE("A", "AB", "ABA", "AABBAB", "ABABABAB", "BBCA", "CDA");
  Cluster cluster;
  cluster.begin("AABB");
  cluster.commit(Step{5});
  cluster.begin(places);
  cluster.check_restored(Step{5}, 4);
  // They go on, and are restored as any other.
  cluster.commit(Step{6});
  const auto world_size = static_cast<std::uint32_t>(places.size());
  cluster.begin(places);
  cluster.check_restored(Step{6}, world_size);
}

TEST_CASE("other world: what a lost node had comes from its copies", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AABB");
  cluster.commit(Step{5});
  cluster.lose("B");
  SECTION("on the node that is left") {
    cluster.begin("AAA");
  }
  SECTION("on a new node besides") {
    cluster.begin("CAC");
    CHECK(cluster.rank(0).offer->source == RestoreSource::peer_memory);
    CHECK(cluster.rank(0).offer->source_name == "node A");
    CHECK(cluster.rank(1).offer->source == RestoreSource::own_memory);
  }
  cluster.check_restored(Step{5}, 4);
}

TEST_CASE("other world: damage in one copy is filled from another", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AABB");
  cluster.commit(Step{5});
  cluster.damage(1);
  cluster.damage(2);
  cluster.begin("AAB");
  cluster.check_restored(Step{5}, 4);
}

TEST_CASE("other world: the step stays until a newer one is committed", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AABB");
  cluster.commit(Step{5});
  cluster.begin("ABA");
  cluster.capture(cluster.rank(0), Step{6});  // The others die before they capture it.
  cluster.begin("ABABA");
  cluster.check_restored(Step{5}, 4);
  cluster.commit(Step{6});
  cluster.begin("AB");
  cluster.check_restored(Step{6}, 5);
  CHECK(cluster.pass_until([&] {  // What the five ranks had and the two do not need is given back.
    cluster.commit(Step{number(cluster.rank(0).committed) + 7});
    return cluster.status("A").at("slot_bytes") <= 2 * 2 * 3 * numbers_in_all * 4;
  }));
  CHECK(cluster.ranks_with_slots("A") == std::set<std::uint32_t>{0});
}

TEST_CASE("other world: Slots that hold two steps to keep are not in the way of a third world",
          "[unit][node]") {
  Cluster cluster;
  cluster.begin("AAA");
  cluster.commit(Step{5});
  cluster.begin("AABAA");
  cluster.capture(Step{6});  // They die before it has its copies: step 5 is the committed one.
  Rules rules;
  rules.is_at_once = true;
  cluster.begin("AAB", rules);
  cluster.check_restored(Step{6}, 5);
  cluster.commit(Step{7});
  cluster.begin("AA");
  cluster.check_restored(Step{7}, 3);
}

TEST_CASE("other world: what was abandoned stays abandoned on a node that comes back",
          "[unit][node]") {
  Cluster cluster;
  cluster.begin("AABB");
  cluster.commit(Step{5});
  cluster.commit(Step{6});
  Rules older;
  older.wanted = Step{6};
  cluster.begin("A", older);  // B is away, and has a copy of all that four ranks saved.
  cluster.check_restored(Step{6}, 4);
  cluster.commit(Step{7});
  cluster.begin("AAB");
  cluster.check_restored(Step{7}, 1);
}

TEST_CASE("other world: a rank gets the whole tensors of the shards that nobody begins with",
          "[unit][node]") {
  Cluster cluster;
  Rules rules;
  rules.has_whole_tensors = rules.joins_shards = true;
  cluster.begin("ABABA", rules);
  cluster.commit(Step{5});
  cluster.begin("AB", rules);
  cluster.check_restored(Step{5}, 5);
  using Numbers = std::map<std::string, std::vector<std::uint32_t>>;
  const auto of = [](std::uint32_t rank, const std::string& prefix = "") {
    return std::pair(fmt::format("{}of rank {}", prefix, rank),
                     std::vector<std::uint32_t>(256, 1000 * rank + 7));
  };
  CHECK(cluster.rank(0).whole_tensors ==
        Numbers{of(0), of(2, "libckpt.rank.2/"), of(4, "libckpt.rank.4/")});
  CHECK(cluster.rank(1).whole_tensors == Numbers{of(1), of(3, "libckpt.rank.3/")});
  cluster.begin("ABABABAB", rules);
  CHECK(cluster.rank(6).whole_tensors == Numbers{of(1)});
}

TEST_CASE("other world: a tensor that several saved whole is nobody's to guess", "[unit][node]") {
  Cluster cluster;
  Rules rules;
  rules.has_whole_tensors = true;
  cluster.begin("AB", rules);
  cluster.commit(Step{5});
  cluster.ask("AAB", rules);
  REQUIRE(cluster.pass_until([&] { return cluster.have_answers(); }));
  const Status& result = cluster.rank(0).answer->result;
  REQUIRE_FALSE(result);
  CHECK(result.error().code() == Errc::invalid_argument);
  CHECK(result.error().message().find("of rank 2") != std::string::npos);
  cluster.begin("AB", rules);  // Nothing is lost.
  cluster.check_restored(Step{5}, 2);
}

TEST_CASE("other world: without room for both the error has the numbers", "[unit][node]") {
  Cluster cluster;
  Rules rules;
  rules.budget = 450 * KiB;  // Of each node: enough for its half, in two Slots and two copies.
  cluster.begin("AB", rules);
  cluster.commit(Step{5});
  cluster.ask("A", rules);
  REQUIRE(cluster.pass_until([&] { return cluster.rank(0).no_slots.has_value(); }));
  CHECK(cluster.rank(0).no_slots->message().find("KiB") != std::string::npos);
  cluster.begin("AB", rules);
  cluster.check_restored(Step{5}, 2);
}

TEST_CASE("other world: a step in the memory of some nodes only is not taken for no step",
          "[unit][node]") {
  Cluster cluster;
  Rules rules;
  rules.replicas = 1;
  cluster.begin("ABC", rules);
  cluster.commit(Step{5});
  cluster.lose("B");
  cluster.ask("AC", rules);
  REQUIRE(cluster.pass_until([&] { return cluster.have_answers(); }));
  REQUIRE_FALSE(cluster.rank(0).answer->result);
  CHECK(cluster.rank(0).answer->result.error().code() == Errc::unsupported);
}

TEST_CASE("other world: a restored step is stored as its ranks saved it", "[unit][node]") {
  Cluster cluster;
  Rules rules;
  rules.directory = "/scratch";
  cluster.begin("AABB", rules);
  cluster.commit(Step{5});
  cluster.begin("ABA", rules);
  cluster.check_restored(Step{5}, 4);
  cluster.flush(Step{5});
  CHECK(cluster.pass_until(
      [&] { return cluster.status("A").at("steps").at(0).at("level") == "durable"; }));
}

}  // namespace ckpt::node
