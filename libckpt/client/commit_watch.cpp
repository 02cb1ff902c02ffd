#include "client/commit_watch.hpp"

#include <fmt/format.h>

namespace ckpt::client {

bool CommitWatch::skipped(const LinkCounters& link, TimePoint now) {
  if (row_ == 0 || link.committed != committed_) begin(link.committed, now);
  ++row_;
  const bool was_long = is_long_;
  is_long_ = ranks_ > 1 && now - since_ >= patience;
  return is_long_ && !was_long;
}

std::string CommitWatch::text() const {
  if (!is_long_) return {};
  return fmt::format(
      "{} saves in a row found no free Slot, and {}: do all {} ranks save the same steps?", row_,
      committed_ ? fmt::format("no step after {} is saved by all ranks", number(*committed_))
                 : "no step is saved by all ranks",
      ranks_);
}

void CommitWatch::begin(std::optional<Step> committed, TimePoint now) {
  committed_ = committed;
  since_ = now;
  row_ = 0;
  is_long_ = false;
}

}  // namespace ckpt::client
