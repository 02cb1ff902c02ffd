// Planner: which bytes of which holder go where, so that a reader gets the regions it wants.
//
// A pure function of the pieces, the wants and the standing of the holders. Each wanted element is
// read from one holder, or is named as a gap. Where several hold one region it takes those of
// the lowest tier (own memory before a peer's, memory before storage), and among these the one that
// gives the fewest bytes so far. It does not rely on pieces that fit together: they may overlap.
#pragma once

#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/piece_index.hpp"
#include "plan/region.hpp"
#include "plan/transfer.hpp"

namespace ckpt::plan {

struct Want {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::uint64_t> shape;  // The whole tensor's shape.
  Region region;
  std::vector<std::uint8_t> order;  // As in Piece.
};

struct Holder {
  std::uint8_t tier = 0;  // Lower ones are asked first.
  bool is_usable = true;
};

struct Gap {
  std::uint32_t want = 0;
  Box box;
  bool operator==(const Gap&) const = default;
};

struct Plan {
  std::vector<Transfer> transfers;  // By want.
  std::vector<Gap> gaps;            // Likewise.
  std::vector<std::uint64_t> bytes_by_holder;
};

struct PlanRules {
  std::span<const Holder> holders;  // All that the index names.
  // Readers that want the same begin with different holders, where they have the choice.
  std::uint32_t reader = 0;
};

// Errors: not_found (no holder has the name), invalid_argument (another type or shape is stored;
// a region outside of the tensor). The text names the tensor, and what is there.
Result<Plan> make_plan(const PieceIndex& index, std::span<const Want> wants,
                       const PlanRules& rules);

// Names the elements that no shard has: "w[512:1024, :]".
std::string describe(const Gap& gap, std::span<const Want> wants);

}  // namespace ckpt::plan
