#include "plan/planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/assert.hpp"
#include "format/piece.hpp"

namespace ckpt::plan {

namespace {

using HeldRegion = PieceIndex::HeldRegion;

// The holder that gives a region. Holders of the same region are interchangeable.
struct Choice {
  const HeldRegion* held = nullptr;
  std::uint8_t tier = 0;
};

// Boxes of one region follow one another in the flattened tensor.
FlatRange span_of_all(const std::vector<Box>& boxes, Shape tensor) {
  const FlatRange first = span_of(boxes.front(), tensor);
  const FlatRange last = span_of(boxes.back(), tensor);
  return {first.begin, last.begin + last.count - first.begin};
}

class Planner {
 public:
  Planner(const PieceIndex& index, const PlanRules& rules) : index_(index), rules_(rules) {
    plan_.bytes_by_holder.resize(rules.holders.size(), 0);
  }

  Status add(std::uint32_t number, const Want& want) {
    CKPT_TRY(const PieceIndex::Tensor* tensor, stored(want));
    const std::vector<Box> boxes = boxes_of(want.region, want.shape);
    if (boxes.empty()) return {};
    const std::vector<HeldRegion> all = index_.overlapping(*tensor, span_of_all(boxes, want.shape));
    const Addresses to = addresses_of(want.region, want.shape, want.order);
    std::vector<Box> missing = boxes;
    for (const Choice& choice : choices(all)) {
      if (missing.empty()) break;
      missing = take(number, want, *choice.held, to, std::move(missing));
    }
    for (Box& box : missing) plan_.gaps.push_back({number, std::move(box)});
    return {};
  }

  Plan finish() { return std::move(plan_); }

 private:
  Result<const PieceIndex::Tensor*> stored(const Want& want) const {
    const PieceIndex::Tensor* tensor = index_.find(want.name);
    if (tensor == nullptr)
      return fail(Errc::not_found, fmt::format("tensor \"{}\" is in no shard", want.name));
    if (tensor->dtype != want.dtype || tensor->shape != want.shape) {
      return fail(Errc::invalid_argument,
                  fmt::format("tensor \"{}\" is {} [{}] here, and {} [{}] in the checkpoint",
                              want.name, safetensors_name(want.dtype), fmt::join(want.shape, ", "),
                              safetensors_name(tensor->dtype), fmt::join(tensor->shape, ", ")));
    }
    const Status inside = format::check_inside(want.region, want.shape);
    if (!inside) {
      return fail(Errc::invalid_argument,
                  fmt::format("tensor \"{}\": {}", want.name, inside.error().text()));
    }
    return tensor;
  }

  // One for each region, the lowest tier first. Pieces of one region follow one another.
  std::vector<Choice> choices(const std::vector<HeldRegion>& all) const {
    std::vector<Choice> chosen;
    const HeldRegion* region = nullptr;  // The newest one's.
    for (const HeldRegion& held : all) {
      CKPT_ASSERT(held.holder < rules_.holders.size());
      const Holder& holder = rules_.holders[held.holder];
      if (!holder.is_usable) continue;
      const bool is_new = region == nullptr || region->region != held.region;
      region = &held;
      if (is_new) {
        chosen.push_back({&held, holder.tier});
      } else if (is_better(held, *chosen.back().held)) {
        chosen.back() = {&held, holder.tier};
      }
    }
    // All of them lie in one list: within a tier they keep its order.
    std::sort(chosen.begin(), chosen.end(), [](const Choice& a, const Choice& b) {
      return a.tier != b.tier ? a.tier < b.tier : a.held < b.held;
    });
    return chosen;
  }

  bool is_better(const HeldRegion& one, const HeldRegion& other) const {
    const auto rank = [&](const HeldRegion& held) {
      const auto count = static_cast<std::uint32_t>(rules_.holders.size());
      const std::uint32_t turn = (held.holder + count - rules_.reader % count) % count;
      return std::tuple(rules_.holders[held.holder].tier, plan_.bytes_by_holder[held.holder], turn);
    };
    return rank(one) < rank(other);
  }

  // Copies the part of `missing` that the piece holds, and returns the rest.
  std::vector<Box> take(std::uint32_t number, const Want& want, const HeldRegion& held,
                        const Addresses& to, std::vector<Box> missing) {
    const std::uint64_t element_bytes = size_of(want.dtype);
    const Addresses from = addresses_of(held.region, want.shape, held.order);
    for (const Box& piece : boxes_of(held.region, want.shape)) {
      std::vector<Box> rest;
      for (Box& box : missing) {
        const auto both = intersection(box, piece);
        if (!both) {
          rest.push_back(std::move(box));
          continue;
        }
        Transfer transfer = make_transfer(*both, from, to, element_bytes);
        transfer.want = number;
        transfer.holder = held.holder;
        transfer.from += held.offset;
        plan_.bytes_by_holder[held.holder] += transfer.bytes();
        plan_.transfers.push_back(std::move(transfer));
        subtract(box, *both, rest);
      }
      missing = std::move(rest);
    }
    return missing;
  }

  const PieceIndex& index_;
  const PlanRules& rules_;
  Plan plan_;
};

}  // namespace

Result<Plan> make_plan(const PieceIndex& index, std::span<const Want> wants,
                       const PlanRules& rules) {
  Planner planner(index, rules);
  for (std::size_t number = 0; number < wants.size(); ++number)
    CKPT_CHECK(planner.add(static_cast<std::uint32_t>(number), wants[number]));
  return planner.finish();
}

std::string describe(const Gap& gap, std::span<const Want> wants) {
  const Want& want = wants[gap.want];
  return want.name + describe(gap.box, want.shape);
}

}  // namespace ckpt::plan
