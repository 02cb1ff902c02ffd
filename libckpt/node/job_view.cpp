// What the coordinator sees: the reports are kept from look to look (SeenCluster), and what is
// short is made anew.
#include "node/job.hpp"

namespace ckpt::node {

namespace {

// How long nodes that were never heard count as coming, at the start of a job.
constexpr Duration arrival_grace = std::chrono::seconds(3);

}  // namespace

const agree::ClusterView& Job::view() const {
  agree::ClusterView& view = seen_.view;
  view.members = facts_.members;
  view.published = storage_.published();
  view.damaged_published = storage_.rejected_count();
  view.unreadable = storage_.unreadable();
  view.history_lost = storage_.history_lost();
  view.expected.clear();
  view.unreported.clear();
  view.all_live = true;
  const Time now = facts_.clock().now();
  const bool may_still_arrive = now - opened_at_ < arrival_grace && !facts_.secret.empty();
  std::vector<const format::NodeReport*> reports{&report_};
  for (const Node& node : facts_.shape.nodes) {
    if (node.name == facts_.node) {
      view.expected.push_back(node.name);
      continue;
    }
    const format::NodeReport* report =
        peers_.is_heard(node.name)
            ? peers_.heard_nodes().report_of(node.name, facts_.shape, facts_.members)
            : nullptr;
    if (report != nullptr) reports.push_back(report);
    const bool is_live = peers_.is_live(node.name);
    if (report == nullptr && is_live) view.unreported.push_back(node.name);
    if (is_live || may_still_arrive) view.expected.push_back(node.name);
    view.all_live = view.all_live && report != nullptr;
  }
  seen_.look_at(facts_.shape, reports);
  return view;
}

}  // namespace ckpt::node
