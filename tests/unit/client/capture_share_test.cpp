// Goal:   ranks that declare copies capture together all of each tensor, about the same number of
//         bytes each, and every captured byte comes from where the tensor has it.
// Method: the registries of all ranks make their layouts and sources. The planner looks for whole
//         tensors in these layouts, and the bytes at the sources must be those of the tensors.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "client/checkpoint_session.hpp"
#include "client/tensor_registry.hpp"
#include "format/piece.hpp"
#include "plan/planner.hpp"
#include "plan/share.hpp"
#include "unit/client/fake_engine.hpp"

namespace ckpt::client {

namespace {

using Catch::Contains;

struct Sample {
  std::string name;
  std::vector<std::uint64_t> global_shape;
  std::vector<std::uint8_t> order;
  std::optional<FlatRange> flat;
  std::vector<std::uint32_t> numbers;  // As they lie in memory; the same at all ranks.

  std::vector<std::int64_t> shape() const {
    if (flat) return {static_cast<std::int64_t>(flat->count)};
    std::vector<std::int64_t> shape;
    for (std::size_t place = 0; place < global_shape.size(); ++place)
      shape.push_back(
          static_cast<std::int64_t>(global_shape[order.empty() ? place : order[place]]));
    return shape;
  }
  Piece piece() const {
    Piece piece;
    piece.global_shape = global_shape;
    piece.order = order;
    if (flat) {
      piece.flat_begin = flat->begin;
    } else {
      piece.offset.assign(global_shape.size(), 0);
    }
    return piece;
  }
  TensorRef tensor(std::uint32_t copy, std::uint32_t copies) {
    TensorRef tensor = ckpt::tensor(numbers.data(), DType::u32, shape());
    tensor.piece = piece();
    if (name == "flat" && copy == 0) {  // The same in other words.
      tensor.piece->flat_begin.reset();
      tensor.piece->offset = {0};
    }
    tensor.piece->copy = copy;
    tensor.piece->copies = copies;
    return tensor;
  }
};

Sample sample(std::string name, std::vector<std::uint64_t> shape,
              std::vector<std::uint8_t> order = {}, std::optional<FlatRange> flat = {}) {
  Sample made{std::move(name), std::move(shape), std::move(order), flat, {}};
  const auto dimensions = made.shape();
  const auto count =
      std::accumulate(dimensions.begin(), dimensions.end(), std::int64_t{1}, std::multiplies<>());
  made.numbers.resize(static_cast<std::size_t>(count));
  std::iota(made.numbers.begin(), made.numbers.end(), static_cast<std::uint32_t>(count));
  return made;
}

// A convolution in channels_last, matrices, a flat range, and many that are small.
std::vector<Sample> samples() {
  std::vector<Sample> all;
  all.push_back(sample("embed", {3001, 257}));
  all.push_back(sample("conv", {64, 32, 17, 5}, {0, 2, 3, 1}));
  all.push_back(sample("range", {777, 1000}, {}, FlatRange{1234, 500'017}));
  all.push_back(sample("flat", {700'001}, {}, FlatRange{0, 700'001}));
  for (int layer = 0; layer < 40; ++layer)
    all.push_back(sample(fmt::format("layers.{}.bias", layer), {12'000}));
  all.push_back(sample("norm", {97}));
  all.push_back(sample("scale", {}));
  return all;
}

// One rank of them, with what it captures.
struct Holder {
  Holder(std::vector<Sample>& all, std::uint32_t copy, std::uint32_t copies) {
    for (Sample& each : all) REQUIRE(registry.add(each.name, each.tensor(copy, copies)));
    REQUIRE(registry.add("head", all.front().tensor(copy, copies)));  // Tied.
    auto made = format::make_layout(registry.specs(), copy, 0);
    REQUIRE((made ? "" : made.error().message()) == "");
    layout = std::move(*made);
    for (const auto& source : registry.sources(layout)) data.push_back(source.data);
    for (const format::TensorPlace& place : layout.tensors)
      if (place.alias_of.empty()) bytes += place.extent.bytes;
  }
  // The captured bytes, as they lie in the Slot.
  const std::byte* at(std::uint64_t offset, std::uint64_t count) const {
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
      const format::TensorPlace& place = layout.tensors[i];
      if (!place.alias_of.empty() || offset < place.extent.offset) continue;
      if (offset + count <= place.extent.end()) return data[i] + (offset - place.extent.offset);
    }
    FAIL("nothing was captured there");
    return nullptr;
  }
  TensorRegistry registry;
  format::Layout layout;
  std::vector<const std::byte*> data;
  std::uint64_t bytes = 0;
};

plan::PieceIndex index_of(const std::vector<std::unique_ptr<Holder>>& holders) {
  plan::PieceIndex index;
  for (std::uint32_t rank = 0; rank < holders.size(); ++rank) {
    for (const format::TensorPlace& place : holders[rank]->layout.tensors) {
      plan::HeldPiece piece;
      piece.name = place.name;
      piece.dtype = place.dtype;
      const auto shape = format::global_shape_of(place.piece, place.shape);
      piece.shape = shape;
      piece.region = format::region_of(place.piece, place.shape);
      if (place.piece) piece.order = place.piece->order;
      piece.holder = rank;
      piece.offset = place.extent.offset;
      REQUIRE(index.add(piece));
    }
  }
  index.finish();
  return index;
}

}  // namespace

TEST_CASE("capture share: the copies of a model capture all of it together", "[unit][client]") {
  const auto copies = GENERATE(1U, 2U, 3U, 5U, 8U);
  std::vector<Sample> all = samples();
  std::vector<std::unique_ptr<Holder>> holders;
  for (std::uint32_t copy = 0; copy < copies; ++copy)
    holders.push_back(std::make_unique<Holder>(all, copy, copies));
  for (const auto& holder : holders) {  // One's part of several captures is a part for all.
    for (const format::TensorPlace& place : holder->layout.tensors)
      if (copies > 1) CHECK(place.piece.has_value());
  }
  const plan::PieceIndex index = index_of(holders);
  const std::vector<plan::Holder> usable(copies);
  std::uint64_t whole = 0;
  for (const Sample& each : all) {
    const std::vector<std::string> names =
        each.name == "embed" ? std::vector<std::string>{"embed", "head"} : std::vector{each.name};
    whole += each.numbers.size() * 4;
    for (const std::string& name : names) {
      plan::Want want{name, DType::u32, each.global_shape,
                      format::region_of(each.piece(), each.shape()), each.order};
      const auto plan = plan::make_plan(index, std::span(&want, 1), {usable, 0});
      REQUIRE((plan ? "" : plan.error().message()) == "");
      REQUIRE(plan->gaps.empty());
      std::vector<std::uint32_t> found(each.numbers.size(), 0);
      for (const plan::Transfer& transfer : plan->transfers) {
        plan::RunsInside(transfer).for_each(0, transfer.from_end(), [&](const auto& run) {
          std::memcpy(reinterpret_cast<std::byte*>(found.data()) + run.to,
                      holders[transfer.holder]->at(run.from, run.bytes), run.bytes);
        });
      }
      CHECK((found == each.numbers));
    }
  }
  const auto most = std::ranges::max_element(holders, {}, [](auto& it) { return it->bytes; });
  CHECK((*most)->bytes <= whole / copies + whole / 20 + plan::small_sum_max);
}

TEST_CASE("capture share: a capture is whole where nobody divides it", "[unit][client]") {
  std::vector<Sample> all = samples();
  const Holder alone(all, 0, 1);
  CHECK_FALSE(alone.registry.has_copies());
  CHECK(alone.layout.tensors.size() == all.size() + 1);
  TensorRegistry registry;
  TensorRef unsaid = all.front().tensor(3, 0);
  REQUIRE(registry.add("embed", unsaid));
  CHECK_FALSE(registry.has_copies());
  CHECK(registry.specs().at(0).shape == all.front().shape());
  CHECK(registry.specs().at(0).piece->copy == 3);
}

TEST_CASE("capture share: a restore wants all of a tensor that captures divide", "[unit][client]") {
  std::vector<Sample> all = samples();
  const Holder holder(all, 1, 4);
  CHECK(holder.registry.has_copies());
  const auto wanted = holder.registry.wanted();
  REQUIRE(wanted.size() == all.size() + 1);
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(wanted[i].shape == all[i].shape());
  CHECK(wanted.back().alias_of == "embed");
  const auto captured = holder.registry.specs();
  REQUIRE(captured.front().name == "embed");
  CHECK(captured.front().shape.at(0) < all.front().shape().at(0));
  CHECK(captured.front().piece->copy == 0);  // Nobody else has these rows.
}

TEST_CASE("capture share: a session saves its share, and asks for all of the tensor",
          "[unit][client]") {
  const auto node = std::make_shared<test::FakeNode>();
  Options options;
  options.job = "unit";
  options.rank = 2;
  options.world_size = 4;
  CheckpointSession session(options, test::link_to(node), 64 * KiB);
  Sample embed = sample("embed", {8192, 64});
  REQUIRE(session.add("embed", embed.tensor(2, 4)));
  REQUIRE(session.save(Step{1}, {}, Due::always));
  REQUIRE(session.guard({}));
  REQUIRE(session.prepare());
  const test::FakeShard& shard = node->shards.at(0);
  const format::TensorPlace& place = shard.record->layout.tensors.at(0);
  CHECK(place.shape == std::vector<std::int64_t>{2048, 64});
  const std::uint64_t first = place.piece->offset.at(0) * 64;
  CHECK(std::memcmp(shard.bytes.data() + place.extent.offset, embed.numbers.data() + first,
                    place.extent.bytes) == 0);
  CHECK_FALSE(session.restore({}));  // Nobody puts the shares together here.
  REQUIRE(node->asked.at(0).tensors.has_value());
  CHECK(node->asked.at(0).tensors->tensors.at(0).shape == embed.shape());
  REQUIRE(session.remove("embed"));
  REQUIRE(session.add("embed", embed.tensor(2, 0)));
  CHECK_FALSE(session.restore({}));
  CHECK_FALSE(node->asked.at(1).tensors.has_value());
}

TEST_CASE("capture share: a number that its count does not have is refused", "[unit][client]") {
  std::vector<Sample> all = samples();
  TensorRegistry registry;
  const Status added = registry.add("embed", all.front().tensor(3, 3));
  REQUIRE_FALSE(added);
  CHECK(added.error().code() == Errc::invalid_argument);
  CHECK_THAT(added.error().message(), Contains("embed") && Contains("copy 3 of 3"));
}

}  // namespace ckpt::client
