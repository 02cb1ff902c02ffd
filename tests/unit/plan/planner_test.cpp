// Goal:   a plan brings each wanted element once, from a holder that has it; it names exactly the
//         elements that nobody has; and it prefers and spreads holders as it says.
// Method: random tensors, pieces and wants. Each holder's bytes carry the number of their element,
//         so that an oracle that knows nothing of boxes can judge what the transfers have copied.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>

#include "base/random.hpp"
#include "plan/planner.hpp"

namespace ckpt::plan {
namespace {

constexpr std::uint32_t nothing = UINT32_MAX;

struct Scene {
  std::vector<std::uint64_t> shape;
  PieceIndex index;
  std::vector<std::vector<std::uint32_t>> holders;  // Their bytes: numbers of elements.
  std::vector<Holder> standing;
  std::vector<bool> is_held;  // By element: some usable holder has it.
};

// The elements of a region in the order in which they lie in memory.
std::vector<std::uint32_t> elements_of(const Region& region,
                                       const std::vector<std::uint64_t>& shape,
                                       const std::vector<std::uint8_t>& order) {
  std::vector<std::uint32_t> elements;
  if (const auto* range = std::get_if<FlatRange>(&region)) {
    for (std::uint64_t i = 0; i < range->count; ++i)
      elements.push_back(static_cast<std::uint32_t>(range->begin + i));
    return elements;
  }
  const Box& box = std::get<Box>(region);
  if (count_of(box.shape) == 0) return elements;
  std::vector<std::uint8_t> slowest_first = order;
  if (order.empty()) {
    slowest_first.resize(shape.size());
    std::iota(slowest_first.begin(), slowest_first.end(), std::uint8_t{0});
  }
  std::vector<std::uint64_t> index(shape.size(), 0);
  for (;;) {
    std::uint64_t element = 0;
    for (std::size_t d = 0; d < shape.size(); ++d)
      element = element * shape[d] + box.offset[d] + index[d];
    elements.push_back(static_cast<std::uint32_t>(element));
    std::size_t place = shape.size();
    for (; place > 0; --place) {
      const std::size_t d = slowest_first[place - 1];
      if (++index[d] < box.shape[d]) break;
      index[d] = 0;
    }
    if (place == 0) return elements;
  }
}

Region random_region(Random& random, const std::vector<std::uint64_t>& shape) {
  const std::uint64_t count = count_of(shape);
  if (random.one_in(2)) {
    const std::uint64_t begin = random.below(count + 1);
    return FlatRange{begin, random.below(count - begin + 1)};
  }
  Box box = whole(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (random.one_in(3)) continue;
    box.offset[d] = random.below(shape[d] + 1);
    box.shape[d] = random.below(shape[d] - box.offset[d] + 1);
  }
  return box;
}

std::vector<std::uint8_t> random_order(Random& random, const Region& region) {
  if (std::holds_alternative<FlatRange>(region) || !random.one_in(4)) return {};
  std::vector<std::uint8_t> order(std::get<Box>(region).shape.size());
  std::iota(order.begin(), order.end(), std::uint8_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

// The regions of a tensor that is divided among `count`, along a dimension or flattened.
std::vector<Region> divided(Random& random, const std::vector<std::uint64_t>& shape,
                            std::uint64_t count) {
  std::vector<Region> regions;
  const bool is_flat = shape.empty() || random.one_in(2);
  const std::size_t d = is_flat ? 0 : random.below(shape.size());
  const std::uint64_t length = is_flat ? count_of(shape) : shape[d];
  for (std::uint64_t part = 0; part < count; ++part) {
    const std::uint64_t begin = length * part / count;
    const std::uint64_t end = length * (part + 1) / count;
    if (is_flat) {
      regions.emplace_back(FlatRange{begin, end - begin});
    } else {
      Box box = whole(shape);
      box.offset[d] = begin;
      box.shape[d] = end - begin;
      regions.emplace_back(std::move(box));
    }
  }
  return regions;
}

void hold(Random& random, Scene& scene, const Region& region, std::uint32_t holder) {
  const std::vector<std::uint8_t> order = random_order(random, region);
  auto& bytes = scene.holders[holder];
  const std::uint64_t offset = bytes.size() * sizeof(std::uint32_t);
  for (const std::uint32_t element : elements_of(region, scene.shape, order)) {
    bytes.push_back(element);
    if (scene.standing[holder].is_usable) scene.is_held[element] = true;
  }
  REQUIRE(scene.index.add({"w", DType::u32, scene.shape, region, order, holder, offset}));
}

Scene random_scene(Random& random) {
  Scene scene;
  scene.shape.resize(random.below(5));
  for (std::uint64_t& length : scene.shape) length = random.one_in(12) ? 0 : 1 + random.below(6);
  scene.is_held.resize(count_of(scene.shape), false);
  const std::uint64_t count = 1 + random.below(8);
  scene.holders.resize(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    scene.standing.push_back({static_cast<std::uint8_t>(random.below(3)), !random.one_in(8)});
  }
  if (random.one_in(2)) {
    const std::vector<Region> regions = divided(random, scene.shape, count);
    const std::uint64_t copies = 1 + random.below(2);
    for (std::uint32_t i = 0; i < count; ++i) {
      for (std::uint64_t copy = 0; copy < copies; ++copy)
        hold(random, scene, regions[i], static_cast<std::uint32_t>((i + copy) % count));
    }
  } else {
    for (std::uint32_t i = 0; i < count; ++i) {
      for (std::uint64_t n = random.below(4); n > 0; --n)
        hold(random, scene, random_region(random, scene.shape), i);
    }
  }
  REQUIRE((scene.index.size() == 0 || scene.index.find("w") != nullptr));
  scene.index.finish();
  return scene;
}

// Why the plan for one want is wrong; empty: it is right. Holders are read in ranges of that size.
std::string fault_in(const Plan& plan, const Want& want, const Scene& scene,
                     std::uint64_t range_bytes) {
  const std::vector<std::uint32_t> elements = elements_of(want.region, want.shape, want.order);
  std::vector<std::uint32_t> arrived(elements.size(), nothing);
  std::vector<std::uint64_t> given(scene.holders.size(), 0);
  std::string fault;
  std::uint64_t begin = 0;  // Where the range of the holder's bytes begins.
  for (const Transfer& transfer : plan.transfers) {
    if (!scene.standing[transfer.holder].is_usable) return "an unusable holder is read";
    std::uint64_t furthest = 0;
    const auto& source = scene.holders[transfer.holder];
    const std::uint64_t source_bytes = source.size() * sizeof(std::uint32_t);
    const RunsInside runs(transfer);
    const auto take = [&](const TransferStretch& stretch) {
      const auto& [from, to, bytes] = stretch;
      const bool is_inside = from >= begin && from + bytes <= begin + range_bytes &&
                             from + bytes <= source_bytes &&
                             to + bytes <= arrived.size() * sizeof(std::uint32_t);
      if (!is_inside) {
        fault = "outside of the bytes";
        return;
      }
      for (std::uint64_t i = 0; i < bytes / sizeof(std::uint32_t); ++i) {
        std::uint32_t& place = arrived[to / sizeof(std::uint32_t) + i];
        if (place != nothing) fault = "an element is brought twice";
        place = source[from / sizeof(std::uint32_t) + i];
      }
      given[transfer.holder] += bytes;
      furthest = std::max(furthest, from + bytes);
    };
    for (begin = 0; begin < source_bytes; begin += range_bytes) {
      const std::uint64_t before = given[transfer.holder];
      runs.for_each(begin, begin + range_bytes, take);
      const bool has_given = given[transfer.holder] > before;
      if (fault.empty() && runs.has_any(begin, begin + range_bytes) != has_given)
        fault = "has_any is wrong";
    }
    if (!fault.empty()) return fault;
    if (furthest != transfer.from_end()) return "from_end is wrong";
  }
  if (given != plan.bytes_by_holder) return "bytes_by_holder is wrong";
  std::vector<bool> is_gap(scene.is_held.size(), false);
  for (const Gap& gap : plan.gaps) {
    for (const std::uint32_t element : elements_of(gap.box, want.shape, {})) {
      if (is_gap[element]) return "a gap is named twice";
      is_gap[element] = true;
    }
  }
  std::size_t gaps = 0;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const bool is_held = scene.is_held[elements[i]];
    if (is_held && arrived[i] != elements[i])
      return fmt::format("element {} is wrong", elements[i]);
    if (is_gap[elements[i]] == is_held) return fmt::format("element {}: a gap?", elements[i]);
    gaps += is_held ? 0 : 1;
  }
  if (gaps != static_cast<std::size_t>(std::ranges::count(is_gap, true)))
    return "a gap outside of what is wanted";
  return {};
}

constexpr std::uint64_t cases = 100'000;

}  // namespace

TEST_CASE("planner: each wanted element comes once, or is named as a gap", "[unit][plan]") {
  std::uint64_t with_gaps = 0;
  std::uint64_t with_transfers = 0;
  for (std::uint64_t seed = 1; seed <= cases; ++seed) {
    Random random(seed);
    const Scene scene = random_scene(random);
    if (scene.index.size() == 0) continue;
    Want want{"w", DType::u32, scene.shape, random_region(random, scene.shape), {}};
    if (random.one_in(4)) want.region = whole(scene.shape);
    want.order = random_order(random, want.region);
    const auto plan = make_plan(scene.index, std::span(&want, 1), {scene.standing, 0});
    REQUIRE(plan);
    const std::string fault = fault_in(*plan, want, scene, 4 * (1 + seed % 67));
    if (!fault.empty()) FAIL("seed " << seed << ": " << fault);
    with_gaps += plan->gaps.empty() ? 0 : 1;
    with_transfers += plan->transfers.empty() ? 0 : 1;
  }
  CHECK(with_gaps > cases / 10);
  CHECK(with_transfers > cases / 2);
}

TEST_CASE("planner: any number of shards becomes any other", "[unit][plan]") {
  for (std::uint64_t from = 1; from <= 8; ++from) {
    for (std::uint64_t to = 1; to <= 8; ++to) {
      Random random(from * 100 + to);
      Scene scene;
      scene.shape = {7, 5, 3};
      scene.is_held.resize(count_of(scene.shape), false);
      scene.holders.resize(from);
      scene.standing.resize(from);
      const auto held = divided(random, scene.shape, from);
      for (std::uint32_t i = 0; i < from; ++i) hold(random, scene, held[i], i);
      scene.index.finish();
      std::uint64_t bytes = 0;
      for (const Region& region : divided(random, scene.shape, to)) {
        const Want want{"w", DType::u32, scene.shape, region, {}};
        const auto plan = make_plan(scene.index, std::span(&want, 1), {scene.standing, 0});
        REQUIRE(plan);
        CHECK(plan->gaps.empty());
        CHECK(fault_in(*plan, want, scene, 24) == "");
        for (const Transfer& transfer : plan->transfers) bytes += transfer.bytes();
      }
      CHECK(bytes == count_of(scene.shape) * sizeof(std::uint32_t));
    }
  }
}

TEST_CASE("planner: the lowest tier is asked, and equal holders share the work", "[unit][plan]") {
  const std::vector<std::uint64_t> shape = {4};
  PieceIndex index;
  for (std::uint32_t holder = 0; holder < 4; ++holder) {
    for (const char* name : {"a", "b", "c"})
      REQUIRE(index.add({name, DType::u8, shape, whole(shape), {}, holder, 0}));
  }
  index.finish();
  std::vector<Want> wants;
  for (const char* name : {"a", "b", "c"})
    wants.push_back({name, DType::u8, shape, whole(shape), {}});
  const std::vector<Holder> holders = {{2}, {1}, {1}, {1}};
  const auto plan = make_plan(index, wants, {holders, 0});
  REQUIRE(plan);
  CHECK(plan->bytes_by_holder == std::vector<std::uint64_t>{0, 4, 4, 4});
  // Another reader begins with another one.
  const auto first_of = [&](std::uint32_t reader) {
    const auto other = make_plan(index, std::span(wants).first(1), {holders, reader});
    REQUIRE(other);
    return other->transfers.at(0).holder;
  };
  CHECK(first_of(1) == 1);
  CHECK(first_of(2) == 2);
  CHECK(first_of(3) == 3);
  const std::vector<Holder> lost = {{2}, {1, false}, {1, false}, {1, false}};
  const auto from_the_last = make_plan(index, wants, {lost, 0});
  REQUIRE(from_the_last);
  CHECK(from_the_last->bytes_by_holder == std::vector<std::uint64_t>{12, 0, 0, 0});
}

TEST_CASE("planner: storage gives only what memory lacks", "[unit][plan]") {
  const std::vector<std::uint64_t> shape = {8};
  PieceIndex index;
  REQUIRE(index.add({"w", DType::u8, shape, whole(shape), {}, 0, 0}));
  REQUIRE(index.add({"w", DType::u8, shape, FlatRange{3, 2}, {}, 1, 0}));
  index.finish();
  const std::vector<Holder> holders = {{2}, {1}};
  const Want want{"w", DType::u8, shape, whole(shape), {}};
  const auto plan = make_plan(index, std::span(&want, 1), {holders, 0});
  REQUIRE(plan);
  CHECK(plan->gaps.empty());
  CHECK(plan->bytes_by_holder == std::vector<std::uint64_t>{6, 2});
}

TEST_CASE("planner: a gap is named as an index, a stranger by what is there", "[unit][plan]") {
  const std::vector<std::uint64_t> shape = {1024, 8};
  PieceIndex index;
  REQUIRE(index.add({"w", DType::f32, shape, Box{{0, 0}, {512, 8}}, {}, 0, 0}));
  const auto odd =
      index.add({"w", DType::f32, std::vector<std::uint64_t>{1024, 9}, FlatRange{0, 1}, {}, 1, 0});
  REQUIRE_FALSE(odd);
  CHECK(odd.error().code() == Errc::corruption);
  CHECK(odd.error().text() ==
        "tensor \"w\" is F32 [1024, 9] at holder 1, and F32 [1024, 8] at one before it");
  index.finish();
  const std::vector<Holder> holders(1);
  Want want{"w", DType::f32, shape, whole(shape), {}};
  const auto plan = make_plan(index, std::span(&want, 1), {holders, 0});
  REQUIRE(plan);
  REQUIRE(plan->gaps.size() == 1);
  CHECK(describe(plan->gaps[0], std::span(&want, 1)) == "w[512:1024, :]");
  want.dtype = DType::bf16;
  const auto other_type = make_plan(index, std::span(&want, 1), {holders, 0});
  REQUIRE_FALSE(other_type);
  CHECK(other_type.error().text() ==
        "tensor \"w\" is BF16 [1024, 8] here, and F32 [1024, 8] in the checkpoint");
  want.name = "v";
  const auto unknown = make_plan(index, std::span(&want, 1), {holders, 0});
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().code() == Errc::not_found);
  CHECK(unknown.error().text() == "tensor \"v\" is in no shard");
}

TEST_CASE("planner: rows of a row-major tensor are one run, columns as many as there are rows",
          "[unit][plan]") {
  const std::vector<std::uint64_t> shape = {64, 32, 16};
  PieceIndex index;
  REQUIRE(index.add({"w", DType::f32, shape, whole(shape), {}, 0, 4096}));
  index.finish();
  const std::vector<Holder> holders(1);
  const auto transfer_of = [&](const Region& region) {
    const Want want{"w", DType::f32, shape, region, {}};
    const auto plan = make_plan(index, std::span(&want, 1), {holders, 0});
    REQUIRE(plan);
    REQUIRE(plan->transfers.size() == 1);
    return plan->transfers[0];
  };
  const std::uint64_t row = 32 * 16 * sizeof(float);
  const Transfer rows = transfer_of(Box{{8, 0, 0}, {4, 32, 16}});
  CHECK(rows == Transfer{0, 0, 4096 + 8 * row, 0, 4 * row, {}});
  const Transfer columns = transfer_of(Box{{0, 8, 0}, {64, 4, 16}});
  CHECK(columns ==
        Transfer{0, 0, 4096 + 8 * 64, 0, 4 * 64, {Repeat{64, row, std::uint64_t{4} * 64}}});
}

}  // namespace ckpt::plan
