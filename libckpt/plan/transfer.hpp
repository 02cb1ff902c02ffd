// Transfer: elements that one holder gives to one want, as runs of bytes at regular distances.
//
// Both sides are plain memory, so a transfer needs no knowledge of tensors: it is a few nested
// loops around a copy of `run_bytes`. Neighbouring runs are joined where they are neighbours on
// both sides.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/region.hpp"

namespace ckpt::plan {

struct Repeat {
  std::uint64_t count = 1;
  std::uint64_t from_step = 0;  // In bytes, on the holder's side,
  std::uint64_t to_step = 0;    // and on the side of the want.
  bool operator==(const Repeat&) const = default;
};

struct Transfer {
  std::uint32_t want = 0;
  std::uint32_t holder = 0;
  std::uint64_t from = 0;  // The first run, in the holder's bytes,
  std::uint64_t to = 0;    // and in those of the want.
  std::uint64_t run_bytes = 0;
  std::vector<Repeat> repeats;  // The outermost first.

  std::uint64_t bytes() const;
  // Where the bytes that are read end, in the holder's.
  std::uint64_t from_end() const;
  bool operator==(const Transfer&) const = default;
};

// The elements of `box`, which both sides have.
Transfer make_transfer(const Box& box, const Addresses& from, const Addresses& to,
                       std::uint64_t element_bytes);

// Calls `run(from, to, bytes)` for each run, in the order of the repeats.
template <class Run>
void for_each_run(const Transfer& transfer, Run run) {
  std::vector<std::uint64_t> done(transfer.repeats.size(), 0);
  std::uint64_t from = transfer.from;
  std::uint64_t to = transfer.to;
  for (;;) {
    run(from, to, transfer.run_bytes);
    std::size_t level = transfer.repeats.size();
    for (; level > 0; --level) {
      const Repeat& repeat = transfer.repeats[level - 1];
      from += repeat.from_step;
      to += repeat.to_step;
      if (++done[level - 1] < repeat.count) break;
      from -= repeat.from_step * repeat.count;
      to -= repeat.to_step * repeat.count;
      done[level - 1] = 0;
    }
    if (level == 0) return;
  }
}

}  // namespace ckpt::plan
