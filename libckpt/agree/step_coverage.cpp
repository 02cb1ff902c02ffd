#include "agree/step_coverage.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ckpt::agree {

namespace {

const PublishedStep* find_published(const ClusterView& view, format::StepId at,
                                    std::uint32_t saved_by) {
  if (!view.published) return nullptr;
  for (const PublishedStep& step : *view.published) {
    if (step.at == at && step.world_size == saved_by) return &step;
  }
  return nullptr;
}

const char* describe(Errc code) {
  return code == Errc::corruption ? "is damaged" : "could not be read";
}

bool agrees(const PublishedStep* published, std::uint32_t rank, const Digest& digest) {
  return published == nullptr || published->digests[rank] == digest;
}

}  // namespace

// All ranks agreed on published steps: a copy in memory that differs is not used.
Coverage cover(const ClusterView& view, const DamagedShards& damaged, format::StepId at,
               std::uint32_t saved_by) {
  Coverage coverage;
  coverage.saved_by = saved_by;
  coverage.is_of_others = saved_by != view.shape.world_size;
  const auto copies = copies_of(view, at, saved_by);
  const PublishedStep* published = find_published(view, at, saved_by);
  const auto damage = damaged.find(at);
  const auto is_damaged = [&](std::uint32_t rank) {
    return damage != damaged.end() && damage->second.contains(rank);
  };
  coverage.holders.resize(saved_by);
  std::size_t unreadable = 0;
  for (std::uint32_t rank = 0; rank < saved_by; ++rank) {
    if (copies[rank] && agrees(published, rank, copies[rank]->digest)) {
      coverage.digests.push_back(copies[rank]->digest);
      coverage.holders[rank] = copies[rank]->nodes;
      if (copies[rank]->nodes.size() == 1) {
        const bool is_stored = published != nullptr && !is_damaged(rank);
        bool& is_only_copy = coverage.alone[copies[rank]->nodes.front()];
        is_only_copy = is_only_copy || !is_stored;
      }
    } else if (published != nullptr && is_damaged(rank)) {
      coverage.digests.emplace_back();
      coverage.missing.push_back(rank);
      unreadable += damage->second.at(rank) == Errc::io;
      if (coverage.damage.empty())
        coverage.damage =
            fmt::format("the stored shard of rank {} {}", rank, describe(damage->second.at(rank)));
    } else if (published != nullptr) {
      coverage.digests.push_back(published->digests[rank]);
      coverage.is_in_memory = false;
    } else {
      coverage.digests.emplace_back();
      coverage.missing.push_back(rank);
    }
  }
  coverage.is_unreadable = unreadable > 0 && unreadable == coverage.missing.size();
  return coverage;
}

bool is_held_beside(const Coverage& coverage, const std::string& node) {
  return std::ranges::any_of(coverage.holders, [&](const std::vector<std::string>& nodes) {
    return std::ranges::any_of(nodes, [&](const std::string& holder) { return holder != node; });
  });
}

}  // namespace ckpt::agree
