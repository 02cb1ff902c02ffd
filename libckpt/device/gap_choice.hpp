// GapChoice: which work between two batches of copies suits a GPU, from what was measured there.
// Pure.
#pragma once

#include <chrono>
#include <ckpt/options.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ckpt::device {

struct GapFigures {
  GpuGap gap = GpuGap::none;
  std::chrono::nanoseconds copies{};  // The time of some batches with it in between.
  std::chrono::nanoseconds wait{};    // The longest wait of a trainer's small copy meanwhile.
};

// The gap with the shortest wait, among those that do not slow the copies down by more than a
// fifth. Where it makes no difference, the first of `measured`, which is the cheapest one.
GpuGap choose_gap(std::span<const GapFigures> measured);

// For a GPU where nothing could be measured, and in the place of a gap that its driver lacks. A
// memset is a kernel: with one queue of the hardware it waits for all that the trainer has
// launched.
constexpr GpuGap usual_gap(bool has_one_queue) {
  return has_one_queue ? GpuGap::none : GpuGap::memset;
}

// The cache is a text with a line for each kind of machine: "KEY<tab>GAP".
std::optional<GpuGap> cached_gap(std::string_view cache, std::string_view key);
// Replaces the line of `key`, or adds one. The oldest lines go when there are too many.
std::string with_gap(std::string_view cache, std::string_view key, GpuGap gap);

std::string_view name_of(GpuGap gap);

}  // namespace ckpt::device
