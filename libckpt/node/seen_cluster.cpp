#include "node/seen_cluster.hpp"

#include <algorithm>

namespace ckpt::node {

void SeenCluster::look_at(const agree::JobShape& shape,
                          const std::vector<const format::NodeReport*>& reports) {
  const auto is_of_same_node = [](const format::NodeReport& seen, const format::NodeReport* now) {
    return seen.node == now->node;
  };
  const bool has_same_nodes = index_ && std::equal(view.reports.begin(), view.reports.end(),
                                                   reports.begin(), reports.end(), is_of_same_node);
  if (!has_same_nodes) {
    view.shape = shape;
    index_ = std::make_shared<agree::ReportIndex>(shape);
    view.index = index_;
    view.reports.clear();
    for (const format::NodeReport* report : reports) {
      view.reports.push_back(*report);
      index_->add(*report);
    }
    return;
  }
  for (std::size_t place = 0; place < reports.size(); ++place) {
    format::NodeReport& seen = view.reports[place];
    const format::NodeReport& now = *reports[place];
    if (seen.boot == now.boot && seen.sequence == now.sequence) continue;
    index_->remove(seen);
    seen = now;
    index_->add(seen);
  }
}

}  // namespace ckpt::node
