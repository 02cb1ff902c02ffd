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

// TransferStretch: bytes that lie without a hole on both sides.
struct TransferStretch {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t bytes = 0;
  bool operator==(const TransferStretch&) const = default;
};

// The elements of `box`, which both sides have.
Transfer make_transfer(const Box& box, const Addresses& from, const Addresses& to,
                       std::uint64_t element_bytes);

// RunsInside: the runs of a transfer that lie in a range of the holder's bytes, cut to it. A
// transfer that is read in many ranges costs each range no more than its own runs.
class RunsInside {
 public:
  // `transfer` outlives it.
  explicit RunsInside(const Transfer& transfer);

  // Calls `take(TransferStretch)` for each, in the order of the holder's bytes.
  template <class Take>
  void for_each(std::uint64_t begin, std::uint64_t end, Take take) const {
    const auto take_all = [&](const TransferStretch& stretch) {
      take(stretch);
      return true;
    };
    visit(0, transfer_.from, transfer_.to, begin, end, take_all);
  }
  // The same until `take` returns false; then it returns false, too.
  template <class Take>
  bool for_each_until(std::uint64_t begin, std::uint64_t end, const Take& take) const {
    return visit(0, transfer_.from, transfer_.to, begin, end, take);
  }
  // The bytes of these runs. However many they are, it takes the same time.
  std::uint64_t bytes_in(std::uint64_t begin, std::uint64_t end) const {
    return bytes_before(end) - bytes_before(begin);
  }

 private:
  struct Loop {
    Repeat repeat;
    std::uint64_t inner_bytes = 0;  // From the first to behind the last byte of one turn.
    std::uint64_t turn_bytes = 0;   // Those of its runs.
  };

  // Those of all runs that lie before a place in the holder's bytes.
  std::uint64_t bytes_before(std::uint64_t place) const;

  // Returns false once `take` did.
  template <class Take>
  bool visit(std::size_t level, std::uint64_t from, std::uint64_t to, std::uint64_t begin,
             std::uint64_t end, const Take& take) const {
    if (level == loops_.size()) return visit_run(from, to, begin, end, take);
    const auto& [repeat, inner_bytes, turn_bytes] = loops_[level];
    const bool is_innermost = level + 1 == loops_.size();  // Millions of turns: without a call.
    std::uint64_t turn = 0;
    if (begin >= from + inner_bytes) turn = (begin - from - inner_bytes) / repeat.from_step + 1;
    for (; turn < repeat.count && from + turn * repeat.from_step < end; ++turn) {
      const std::uint64_t next_from = from + turn * repeat.from_step;
      const std::uint64_t next_to = to + turn * repeat.to_step;
      const bool is_done = is_innermost ? visit_run(next_from, next_to, begin, end, take)
                                        : visit(level + 1, next_from, next_to, begin, end, take);
      if (!is_done) return false;
    }
    return true;
  }
  template <class Take>
  bool visit_run(std::uint64_t from, std::uint64_t to, std::uint64_t begin, std::uint64_t end,
                 const Take& take) const {
    const std::uint64_t cut = begin > from ? begin - from : 0;
    const std::uint64_t last = end < from + transfer_.run_bytes ? end : from + transfer_.run_bytes;
    return from + cut >= last || take(TransferStretch{from + cut, to + cut, last - from - cut});
  }

  const Transfer& transfer_;
  std::vector<Loop> loops_;  // The largest step on the holder's side first.
};

}  // namespace ckpt::plan
