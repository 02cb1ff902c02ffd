// IdleWatch: how long a job has had no trainer, and how long its memory is kept for one to return.
//
//   trainer seen --limit--> expired: steps not on storage are stored --as long again--> given up
#pragma once

#include <algorithm>
#include <string>

#include "base/clock.hpp"

namespace ckpt::node {

class IdleWatch {
 public:
  // Storing is tried for as long again as the job was idle, and for this long at least: a short
  // limit leaves no time for a large step.
  static constexpr Duration flush_time_min = std::chrono::minutes(30);

  explicit IdleWatch(Duration limit) : limit_(limit) {}

  void seen(Time now) { seen_at_ = now; }
  Duration since(Time now) const { return now - seen_at_; }
  Duration left(Time now) const { return std::max(Duration::zero(), limit_ - since(now)); }
  bool is_expired(Time now) const { return since(now) >= limit_; }
  bool is_given_up(Time now) const {
    return since(now) >= limit_ + std::max(limit_, flush_time_min);
  }
  std::string limit_text() const;  // "2 h", for people.

 private:
  Duration limit_;
  Time seen_at_{};
};

}  // namespace ckpt::node
