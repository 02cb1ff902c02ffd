// PlannerScene: random tensors, and holders of random parts of them. Each byte of a holder carries
// the number of its place in its tensor.
#pragma once

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "plan/planner.hpp"

namespace ckpt::plan {

inline constexpr std::uint8_t no_tier = UINT8_MAX;

struct Tensor {
  std::string name;
  DType dtype = DType::u32;
  std::vector<std::uint64_t> shape;
  std::uint32_t label = 0;  // Of its first byte; the others count on from there.
  std::vector<std::uint8_t>
      tier;  // By element: the lowest of usable holders; no_tier: none has it.
};

struct Held {
  std::size_t tensor = 0;
  Region region;
  std::uint32_t holder = 0;
  std::uint64_t begin = 0, end = 0;  // In the holder's bytes.
};

struct Scene {
  PieceIndex index;
  std::vector<Tensor> tensors;
  std::vector<std::vector<std::uint32_t>> holders;  // Their bytes: labels.
  std::vector<Holder> standing;
  std::vector<Held> pieces;

  const Tensor& of(const Want& want) const {
    return *std::ranges::find(tensors, want.name, &Tensor::name);
  }
};

// The elements of a region in the order in which they lie in memory.
inline std::vector<std::uint32_t> elements_of(const Region& region,
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

inline Region random_region(Random& random, const std::vector<std::uint64_t>& shape) {
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

inline std::vector<std::uint8_t> random_order(Random& random, const Region& region) {
  if (std::holds_alternative<FlatRange>(region) || !random.one_in(4)) return {};
  std::vector<std::uint8_t> order(std::get<Box>(region).shape.size());
  std::iota(order.begin(), order.end(), std::uint8_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

// The regions of a tensor that is divided among `count`, along a dimension or flattened.
inline std::vector<Region> divided(Random& random, const std::vector<std::uint64_t>& shape,
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

inline void hold(Random& random, Scene& scene, std::size_t number, const Region& region,
                 std::uint32_t holder) {
  Tensor& tensor = scene.tensors[number];
  const std::vector<std::uint8_t> order = random_order(random, region);
  auto& bytes = scene.holders[holder];
  const std::uint64_t offset = bytes.size();
  const Holder& standing = scene.standing[holder];
  const auto element_bytes = static_cast<std::uint32_t>(size_of(tensor.dtype));
  for (const std::uint32_t element : elements_of(region, tensor.shape, order)) {
    for (std::uint32_t byte = 0; byte < element_bytes; ++byte)
      bytes.push_back(tensor.label + element * element_bytes + byte);
    if (standing.is_usable) tensor.tier[element] = std::min(tensor.tier[element], standing.tier);
  }
  scene.pieces.push_back({number, region, holder, offset, bytes.size()});
  REQUIRE(
      scene.index.add({tensor.name, tensor.dtype, tensor.shape, region, order, holder, offset}));
}

inline Tensor& add_tensor(Scene& scene, std::string name, DType dtype,
                          std::vector<std::uint64_t> shape) {
  Tensor tensor{std::move(name), dtype, std::move(shape), 0, {}};
  for (const Tensor& other : scene.tensors)
    tensor.label += static_cast<std::uint32_t>(other.tier.size() * size_of(other.dtype));
  tensor.tier.resize(count_of(tensor.shape), no_tier);
  return scene.tensors.emplace_back(std::move(tensor));
}

inline void hold_some(Random& random, Scene& scene, std::size_t tensor) {
  const std::vector<std::uint64_t> shape = scene.tensors[tensor].shape;
  const std::uint64_t count = scene.holders.size();
  if (random.one_in(2)) {
    const std::vector<Region> regions = divided(random, shape, count);
    const std::uint64_t copies = 1 + random.below(2);
    for (std::uint32_t i = 0; i < count; ++i) {
      for (std::uint64_t copy = 0; copy < copies; ++copy)
        hold(random, scene, tensor, regions[i], static_cast<std::uint32_t>((i + copy) % count));
    }
  } else if (random.one_in(4)) {
    const Region region = random_region(random, shape);
    for (std::uint32_t i = 0; i < count; ++i) hold(random, scene, tensor, region, i);
  } else {
    for (std::uint32_t i = 0; i < count; ++i) {
      for (std::uint64_t n = random.below(4); n > 0; --n)
        hold(random, scene, tensor, random_region(random, shape), i);
    }
  }
}

inline Scene random_scene(Random& random) {
  static constexpr std::array dtypes = {DType::u8, DType::bf16, DType::u32, DType::f64};
  Scene scene;
  const std::uint64_t count = 1 + random.below(8);
  scene.holders.resize(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    scene.standing.push_back({static_cast<std::uint8_t>(random.below(3)), !random.one_in(8)});
  }
  for (std::uint64_t number = 1 + random.below(2); number > 0; --number) {
    std::vector<std::uint64_t> shape(random.below(5));
    const std::uint64_t length_max = shape.size() > 2 ? 4 : 6;
    for (std::uint64_t& length : shape)
      length = random.one_in(12) ? 0 : 1 + random.below(length_max);
    add_tensor(scene, number == 1 ? "w" : "v", dtypes[random.below(dtypes.size())],
               std::move(shape));
  }
  for (std::size_t tensor = 0; tensor < scene.tensors.size(); ++tensor)
    hold_some(random, scene, tensor);
  scene.index.finish();
  return scene;
}

}  // namespace ckpt::plan
