// Oracle: judges a plan by what its transfers copy, and from whom. It knows nothing of boxes.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "unit/plan/planner_scene.hpp"

namespace ckpt::plan {

// Why a plan is wrong; empty: it is right. Holders are read in ranges of that size.
class Oracle {
 public:
  Oracle(const Scene& scene, std::span<const Want> wants, std::uint32_t reader)
      : scene_(scene), wants_(wants), reader_(reader), given_(scene.holders.size(), 0) {}

  std::string fault_in(const Plan& plan, std::uint64_t range_bytes) {
    std::size_t next = 0;
    for (std::uint32_t number = 0; number < wants_.size(); ++number) {
      const Want& want = wants_[number];
      arrived_.assign(count_of(want.region) * size_of(want.dtype), nothing_came);
      const std::vector<std::uint64_t> before = given_;
      for (; next < plan.transfers.size() && plan.transfers[next].want == number; ++next) {
        const Transfer& transfer = plan.transfers[next];
        std::string fault = fault_in_choice(transfer, before);
        if (fault.empty()) fault = fault_in_bytes(transfer, range_bytes);
        if (!fault.empty()) return fault;
      }
      const std::string fault = fault_in_sum(want, number, plan.gaps);
      if (!fault.empty()) return fault;
    }
    if (next != plan.transfers.size()) return "a transfer is for no want, or out of its order";
    return given_ == plan.bytes_by_holder ? "" : "bytes_by_holder is wrong";
  }

 private:
  std::uint64_t turn_of(std::uint32_t holder) const {
    const std::uint64_t count = scene_.holders.size();
    return (holder + count - reader_ % count) % count;
  }

  // Holders of the same region: the nearest, then who has given least, then whose turn it is.
  std::string fault_in_choice(const Transfer& transfer, const std::vector<std::uint64_t>& before) {
    const auto standing_of = [&](std::uint32_t holder) { return scene_.standing[holder]; };
    if (!standing_of(transfer.holder).is_usable) return "an unusable holder is read";
    const auto held = std::ranges::find_if(scene_.pieces, [&](const Held& piece) {
      return piece.holder == transfer.holder && piece.begin <= transfer.from &&
             transfer.from < piece.end;
    });
    if (held == scene_.pieces.end()) return "no piece is read";
    const auto rank = [&](std::uint32_t holder) {
      return std::tuple(standing_of(holder).tier, before[holder], turn_of(holder));
    };
    for (const Held& other : scene_.pieces) {
      const bool is_copy = other.tensor == held->tensor && other.region == held->region &&
                           standing_of(other.holder).is_usable;
      if (is_copy && rank(other.holder) < rank(held->holder))
        return "another holder was to give it";
    }
    return {};
  }

  std::string fault_in_bytes(const Transfer& transfer, std::uint64_t range_bytes) {
    std::string fault;
    std::uint64_t furthest = 0, begin = 0;  // Where the range of the holder's bytes begins.
    const auto& source = scene_.holders[transfer.holder];
    std::uint64_t& given = given_[transfer.holder];
    const std::uint8_t tier = scene_.standing[transfer.holder].tier;
    const Tensor& tensor = scene_.of(wants_[transfer.want]);
    const RunsInside runs(transfer);
    const auto take = [&](const TransferStretch& stretch) {
      const auto& [from, to, bytes] = stretch;
      const bool is_inside = from >= begin && from + bytes <= begin + range_bytes &&
                             from + bytes <= source.size() && to + bytes <= arrived_.size();
      if (!is_inside) {
        fault = "outside of the bytes";
        return;
      }
      for (std::uint64_t i = 0; i < bytes; ++i) {
        std::uint32_t& place = arrived_[to + i];
        if (place != nothing_came) fault = "a byte is brought twice";
        place = source[from + i];
        const std::uint64_t element = (place - tensor.label) / size_of(tensor.dtype);
        if (element >= tensor.tier.size() || tensor.tier[element] != tier)
          fault = "a nearer holder has it, or it is of another tensor";
      }
      given += bytes;
      furthest = std::max(furthest, from + bytes);
    };
    for (begin = 0; begin < source.size() && fault.empty(); begin += range_bytes) {
      const std::uint64_t before = given;
      runs.for_each(begin, begin + range_bytes, take);
      if (fault.empty() && runs.bytes_in(begin, begin + range_bytes) != given - before)
        fault = "bytes_in is wrong";
    }
    if (fault.empty() && furthest != transfer.from_end()) fault = "from_end is wrong";
    return fault;
  }

  // All that somebody has has come, and the rest is a gap.
  std::string fault_in_sum(const Want& want, std::uint32_t number, std::span<const Gap> all) const {
    const Tensor& tensor = scene_.of(want);
    const std::uint64_t element_bytes = size_of(want.dtype);
    std::vector<bool> is_gap(tensor.tier.size(), false);
    for (const Gap& gap : all) {
      if (gap.want != number) continue;
      for (const std::uint32_t element : elements_of(gap.box, want.shape, {})) {
        if (is_gap[element]) return "a gap is named twice";
        is_gap[element] = true;
      }
    }
    std::ptrdiff_t gaps = 0;
    std::uint64_t at = 0;
    for (const std::uint32_t element : elements_of(want.region, want.shape, want.order)) {
      const bool is_held = tensor.tier[element] != no_tier;
      for (std::uint64_t byte = 0; byte < element_bytes; ++byte, ++at) {
        const std::uint64_t label = tensor.label + element * element_bytes + byte;
        if (is_held && arrived_[at] != label) return fmt::format("element {} is wrong", element);
      }
      if (is_gap[element] == is_held) return fmt::format("element {}: a gap?", element);
      gaps += is_held ? 0 : 1;
    }
    return gaps == std::ranges::count(is_gap, true) ? "" : "a gap outside of what is wanted";
  }

  static constexpr std::uint32_t nothing_came = UINT32_MAX;

  const Scene& scene_;
  const std::span<const Want> wants_;
  const std::uint32_t reader_;
  std::vector<std::uint64_t> given_;    // By holder.
  std::vector<std::uint32_t> arrived_;  // The bytes of one want.
};

}  // namespace ckpt::plan
