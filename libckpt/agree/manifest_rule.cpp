#include "agree/manifest_rule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/units.hpp"
#include "format/manifest_size.hpp"

namespace ckpt::agree {

std::string too_large_to_store(const ClusterView& view, format::StepId at,
                               std::uint64_t manifest_bytes_max) {
  std::map<std::uint32_t, std::uint64_t> by_rank;
  for (const format::NodeReport& node : view.reports) {
    for (const format::Holding& holding : node.holdings) {
      if (holding.id.at != at) continue;
      std::uint64_t& bytes = by_rank[holding.id.rank];
      bytes = std::max(bytes, holding.manifest_bytes);
    }
  }
  std::vector<std::string> nodes;
  for (const Node& node : view.shape.nodes) nodes.push_back(node.name);
  const std::uint64_t total = std::accumulate(
      by_rank.begin(), by_rank.end(), format::manifest_frame_bytes(view.shape.job, nodes),
      [](std::uint64_t sum, const auto& entry) { return sum + entry.second; });
  if (total <= manifest_bytes_max) return {};
  return fmt::format(
      "no step can be stored: the manifest of {} ranks would take {:.1f} MiB, above the limit of "
      "{:.1f} MiB; fewer tensors, or fewer ranks in one job, make it smaller; memory and copies go "
      "on",
      view.shape.world_size, static_cast<double>(total) / MiB,
      static_cast<double>(manifest_bytes_max) / MiB);
}

}  // namespace ckpt::agree
