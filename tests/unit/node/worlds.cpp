#include "unit/node/worlds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "format/piece.hpp"
#include "support/pending.hpp"

namespace ckpt::test {

namespace {

constexpr std::uint64_t blob_capacity = 64;

FlatRange part_of(std::uint32_t rank, std::uint32_t world_size) {
  const std::uint64_t begin = numbers_in_all * rank / world_size;
  return {begin, numbers_in_all * (rank + 1) / world_size - begin};
}

struct Declared {
  std::uint32_t copy = 0;
  std::uint32_t stage = 0;  // Its whole tensor's.
  std::uint64_t all = numbers_in_all;
  std::uint32_t version = 0;
};

format::Layout layout_of(std::uint32_t rank, FlatRange part, bool has_whole_tensor,
                         Declared declared) {
  std::vector<format::TensorSpec> specs(1);
  specs[0].name = "weight";
  specs[0].dtype = DType::u32;
  specs[0].shape = {static_cast<std::int64_t>(part.count)};
  Piece piece;
  piece.global_shape = {declared.all};
  piece.flat_begin = part.begin;
  piece.copy = declared.copy;
  specs[0].piece = format::normalized(piece, specs[0].shape);
  if (has_whole_tensor) {
    specs.emplace_back();
    specs[1].name = fmt::format("of rank {}", declared.stage);
    specs[1].dtype = DType::u32;
    specs[1].shape = {256};
  }
  auto layout = format::make_layout(specs, rank, blob_capacity, declared.version);
  REQUIRE((layout ? "" : layout.error().message()) == "");
  return *layout;
}

}  // namespace

void Trainer::offered(control::Offer it) {
  const auto bytes = slots.at(it.slot).memory->bytes();
  const format::ShardRecord& record = *it.record;
  offer = it;
  last_slot = it.slot;
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

Cluster::~Cluster() {
  end_world();
  for (auto& [name, node] : nodes_) stop(node);
  clock_.advance(std::chrono::seconds(10));
}

void Cluster::ask(const std::string& places, Rules rules) {
  end_world(rules.is_at_once ? std::chrono::seconds(0) : std::chrono::seconds(1));
  rules_ = rules;
  if (!rules.has_old_list) ++incarnation_;
  std::vector<Node> members;
  for (const char letter : places) {
    const std::string name(1, letter);
    const bool is_new = std::ranges::find(members, name, &Node::name) == members.end();
    if (is_new) members.push_back({name, "", name + ":1"});
    if (!nodes_.contains(name)) open(name, rules.budget);
  }
  const auto world_size = world_size_ = static_cast<std::uint32_t>(places.size());
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
    if (rules.max_ckpt_num) request.max_ckpt_num = *rules.max_ckpt_num;
    request.skip_unchanged = rules.skips_unchanged;
    request.nodes = members;
    request.node = std::string(1, places[rank]);
    request.incarnation = incarnation_;
    request.secret = "the secret of all nodes, long enough to be one";
    auto attached = finish(clock_, start(context_, trainer->engine->attach(request, *trainer)));
    REQUIRE((attached ? "" : attached.error().message()) == "");
    trainer->session = attached->session;
    REQUIRE(trainer->engine->call(trainer->session, control::SetLayout{captured_by(rank)}));
    control::AskRestore asked{1, rules.wanted, rules.joins_shards};
    asked.source = rules.source;
    if (rules.are_copies)
      asked.tensors = layout_of(rank, {0, numbers_in_all}, rules.has_whole_tensors, {0, rank});
    REQUIRE(trainer->engine->call(trainer->session, std::move(asked)));
    ranks_.push_back(std::move(trainer));
  }
}

void Cluster::begin(const std::string& places, Rules rules) {
  ask(places, std::move(rules));
  REQUIRE(pass_until([&] { return have_answers(); }));
  for (const auto& trainer : ranks_)
    REQUIRE((trainer->answer->result ? "" : trainer->answer->result.error().message()) == "");
}

void Cluster::capture(Step step) {
  REQUIRE(pass_until(
      [&] { return std::ranges::none_of(ranks_, [](auto& it) { return it->granted.empty(); }); }));
  for (const auto& trainer : ranks_) capture(*trainer, step);
}

void Cluster::capture(Trainer& trainer, Step step) {
  fill(trainer, begin_capture(trainer, step), step);
}

std::uint32_t Cluster::begin_capture(Trainer& trainer, Step step) {
  const std::uint32_t slot = trainer.last_slot = trainer.granted.front();
  trainer.granted.pop_front();
  REQUIRE(trainer.engine->call(trainer.session, trainer.begin_of(slot, step)));
  return slot;
}

void Cluster::fill(Trainer& trainer, std::uint32_t slot, Step step) {
  const format::Layout layout = captured_by(trainer.rank);
  const std::span<std::byte> bytes = trainer.slots.at(slot).memory->bytes();
  for (const format::TensorPlace& tensor : layout.tensors) {
    const bool is_weight = tensor.name == "weight";
    const bool is_part = is_weight && !rules_.captures_all;
    const std::uint64_t first = is_part ? part_of(trainer.rank, world_size_).begin : 0;
    for (std::uint64_t index = 0; index < tensor.extent.bytes / 4; ++index) {
      const std::uint32_t value =
          is_weight ? number_at(step, first + index) : 1000 * stage_of(trainer.rank) + 7;
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
  if (rules_.is_frozen) {  // The engine's Chunks would be larger than all of it.
    filled.chunk_bytes = page_bytes;
    const std::uint64_t covered = format::covered_bytes(layout, filled.blob_bytes);
    for (std::uint64_t at = 0; at < covered; at += page_bytes)
      filled.chunk_crcs.push_back(crc32(bytes.subspan(at, page_bytes)));
  }
  if (!rules_.noted.empty()) filled.copies = {{"divided", {1, 2}, rules_.noted.at(trainer.rank)}};
  REQUIRE(trainer.engine->call(trainer.session, std::move(filled)));
}

void Cluster::damage(std::size_t of_rank, std::size_t page) {
  Trainer& trainer = *ranks_.at(of_rank);
  const format::Layout layout = captured_by(trainer.rank);
  const auto bytes = trainer.slots.at(trainer.last_slot).memory->bytes();
  bytes[layout.tensors.at(0).extent.offset + page * page_bytes] ^= std::byte{1};
}

void Cluster::damage_replicas(std::size_t of_rank, std::size_t page) {
  Trainer& trainer = *ranks_.at(of_rank);
  const format::Layout layout = captured_by(trainer.rank);
  const auto bytes = trainer.slots.at(trainer.last_slot).memory->bytes();
  const auto covered = bytes.first(format::covered_bytes(layout, 1));
  const std::size_t at = layout.tensors.at(0).extent.offset + page * page_bytes;
  REQUIRE(memory_.flip_copies_of(covered, at) > 0);
}

void Cluster::limit_streams(std::uint64_t bytes_per_second) {
  SimNetworkOptions options;
  options.bytes_per_second = bytes_per_second;
  network_.set_options(options);
}

void Cluster::commit(Step step) {
  capture(step);
  REQUIRE(pass_until([&] {
    return std::ranges::all_of(ranks_, [&](auto& it) { return it->committed >= step; });
  }));
}

void Cluster::check_restored(Step step, std::uint32_t saved_by) {
  const auto world_size = static_cast<std::uint32_t>(ranks_.size());
  for (const auto& trainer : ranks_) {
    CAPTURE(trainer->rank, world_size, saved_by);
    REQUIRE(trainer->answer->restored);
    CHECK(trainer->answer->restored->step == step);
    REQUIRE(trainer->offer);
    CHECK(trainer->offer->saved_by == saved_by);
    const FlatRange part =
        rules_.are_copies ? FlatRange{0, numbers_in_all} : part_of(trainer->rank, world_size);
    REQUIRE(trainer->weight.size() == part.count);
    bool is_same = true;
    for (std::uint64_t index = 0; index < part.count; ++index)
      is_same = is_same && trainer->weight[index] == number_at(step, part.begin + index);
    CHECK(is_same);
    CHECK(trainer->blob_of == trainer->rank % saved_by);
  }
}

void Cluster::end_world(std::chrono::seconds pause) {
  for (const auto& trainer : ranks_) trainer->engine->detach(trainer->session);
  ranks_.clear();
  if (pause.count() > 0) clock_.advance(pause);
}

void Cluster::close_world() {
  for (const auto& trainer : ranks_)
    REQUIRE(trainer->engine->call(trainer->session, control::Close{std::chrono::seconds(60)}));
  REQUIRE(pass_until([&] {
    return std::ranges::all_of(ranks_, [](const auto& it) { return it->end.has_value(); });
  }));
  end_world(std::chrono::seconds(0));
}

void Cluster::lose(const std::string& name) {
  std::erase_if(ranks_, [&](auto& it) { return it->engine == nodes_.at(name).engine.get(); });
  stop(nodes_.at(name));
  nodes_.erase(name);
}

std::set<std::uint32_t> Cluster::ranks_with_slots(const std::string& name) {
  std::set<std::uint32_t> ranks;
  const nlohmann::json job = status(name);
  for (const auto& slot : job.at("slots"))
    if (slot.at("own")) ranks.insert(slot.at("rank").get<std::uint32_t>());
  return ranks;
}

nlohmann::json Cluster::status(const std::string& name) {
  return nlohmann::json::parse(nodes_.at(name).engine->status_json()).at("jobs").at(0);
}

void Cluster::flush(Step step) {
  for (const auto& trainer : ranks_)
    REQUIRE(trainer->engine->call(trainer->session, control::Flush{step}));
}

void Cluster::store(Step step) {
  commit(step);
  flush(step);
  const Engine& engine = *ranks_.front()->engine;
  REQUIRE(pass_until([&] {
    const auto status = nlohmann::json::parse(engine.status_json());
    const auto& newest = status.at("jobs").at(0).at("steps").at(0);
    return newest.at("step") == number(step) && newest.at("level") == "durable";
  }));
}

void Cluster::rot(const std::string& path) {
  disk_.flip(path, 2 * page_bytes, 3);
}

void Cluster::open(const std::string& name, std::uint64_t budget) {
  OneNode& node = nodes_[name];
  node.front = network_.add_node(name, clock_);
  EngineOptions options;
  options.name = name;
  options.boot = ++boots_;
  options.memory_budget = budget;
  options.verify_every = rules_.verify_every;
  options.verify_stored = true;
  node.engine = std::make_unique<Engine>(context_.get_executor(),
                                         Seams{clock_, memory_, files_, *node.front}, options);
}

format::Layout Cluster::captured_by(std::uint32_t rank) const {
  Declared declared{0, stage_of(rank)};
  declared.version = layout_version_;
  if (rules_.captures_all) {
    declared.copy = rank;
    return layout_of(rank, {0, numbers_in_all}, rules_.has_whole_tensors, declared);
  }
  if (rules_.contradicts == rank) ++declared.all;
  FlatRange part = part_of(rank, world_size_);
  if (with_half_.contains(rank)) part.count /= 2;
  return layout_of(rank, part, rules_.has_whole_tensors, declared);
}

std::uint32_t Cluster::stage_of(std::uint32_t rank) const {
  return rules_.stages.empty() ? rank : rules_.stages.at(rank);
}

void Cluster::declare(std::uint32_t rank, Share share) {
  with_half_.erase(rank);
  if (share == Share::half) with_half_.insert(rank);
  ++layout_version_;
  for (const auto& trainer : ranks_)
    REQUIRE(
        trainer->engine->call(trainer->session, control::SetLayout{captured_by(trainer->rank)}));
  clock_.advance(std::chrono::seconds(1));
}

std::uint32_t Cluster::number_at(Step step, std::uint64_t place) const {
  constexpr std::uint64_t parts = 15;
  const bool changes =
      !rules_.is_frozen || place / (numbers_in_all / 2 / parts) % parts == parts - 1;
  return static_cast<std::uint32_t>((changes ? number(step) * 1'000'000 : 0) + place);
}

void Cluster::stop(OneNode& node) {
  if (!node.engine) return;
  (void)finish(clock_, start(context_, node.engine->stop(std::chrono::seconds(5))));
  node.engine.reset();
}

}  // namespace ckpt::test
