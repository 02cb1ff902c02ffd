#include "plan/transfer.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace ckpt::plan {

namespace {

// Two loops are one where the outer one goes on where the inner one has ended, on both sides.
void join_loops(std::vector<Repeat>& repeats) {
  for (std::size_t inner = repeats.size(); inner-- > 1;) {
    Repeat& outer = repeats[inner - 1];
    const Repeat& within = repeats[inner];
    if (outer.from_step != within.from_step * within.count) continue;
    if (outer.to_step != within.to_step * within.count) continue;
    outer = {outer.count * within.count, within.from_step, within.to_step};
    repeats.erase(repeats.begin() + static_cast<std::ptrdiff_t>(inner));
  }
}

}  // namespace

std::uint64_t Transfer::bytes() const {
  std::uint64_t bytes = run_bytes;
  for (const Repeat& repeat : repeats) bytes *= repeat.count;
  return bytes;
}

std::uint64_t Transfer::from_end() const {
  std::uint64_t end = from + run_bytes;
  for (const Repeat& repeat : repeats) end += repeat.from_step * (repeat.count - 1);
  return end;
}

Transfer make_transfer(const Box& box, const Addresses& from, const Addresses& to,
                       std::uint64_t element_bytes) {
  CKPT_ASSERT(count_of(box.shape) > 0);
  Transfer transfer;
  transfer.from = from.of(box.offset) * element_bytes;
  transfer.to = to.of(box.offset) * element_bytes;
  transfer.run_bytes = element_bytes;
  for (std::size_t d = 0; d < box.shape.size(); ++d) {
    if (box.shape[d] == 1) continue;
    transfer.repeats.push_back(
        {box.shape[d], from.strides[d] * element_bytes, to.strides[d] * element_bytes});
  }
  // The innermost loop is the one with the smallest steps where the bytes are written.
  std::sort(transfer.repeats.begin(), transfer.repeats.end(), [](const Repeat& a, const Repeat& b) {
    return a.to_step != b.to_step ? a.to_step > b.to_step : a.from_step > b.from_step;
  });
  while (!transfer.repeats.empty()) {
    const Repeat& inner = transfer.repeats.back();
    if (inner.from_step != transfer.run_bytes || inner.to_step != transfer.run_bytes) break;
    transfer.run_bytes *= inner.count;
    transfer.repeats.pop_back();
  }
  join_loops(transfer.repeats);
  return transfer;
}

RunsInside::RunsInside(const Transfer& transfer) : transfer_(transfer) {
  for (const Repeat& repeat : transfer.repeats) {
    CKPT_ASSERT(repeat.from_step > 0);
    loops_.push_back({repeat});
  }
  std::sort(loops_.begin(), loops_.end(),
            [](const Loop& a, const Loop& b) { return a.repeat.from_step > b.repeat.from_step; });
  std::uint64_t inner_bytes = transfer.run_bytes;
  std::uint64_t turn_bytes = transfer.run_bytes;
  for (std::size_t level = loops_.size(); level-- > 0;) {
    Loop& loop = loops_[level];
    loop.inner_bytes = inner_bytes;
    loop.turn_bytes = turn_bytes;
    CKPT_ASSERT(inner_bytes <= loop.repeat.from_step);  // A turn ends before the next one begins.
    inner_bytes += loop.repeat.from_step * (loop.repeat.count - 1);
    turn_bytes *= loop.repeat.count;
  }
}

std::uint64_t RunsInside::bytes_before(std::uint64_t place) const {
  if (place <= transfer_.from) return 0;
  std::uint64_t left = place - transfer_.from;
  std::uint64_t bytes = 0;
  for (const Loop& loop : loops_) {
    const std::uint64_t turns = left / loop.repeat.from_step;
    if (turns >= loop.repeat.count) return bytes + loop.repeat.count * loop.turn_bytes;
    bytes += turns * loop.turn_bytes;
    left -= turns * loop.repeat.from_step;
  }
  return bytes + std::min(left, transfer_.run_bytes);
}

}  // namespace ckpt::plan
