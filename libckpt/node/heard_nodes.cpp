#include "node/heard_nodes.hpp"

#include <fmt/format.h>

namespace ckpt::node {

bool HeardNodes::report_received(format::NodeReport report, Time now) {
  const std::string node = report.node;
  jobs_[node] = {report.run, report.incarnation, report.members};
  const auto known = reports_.find(node);
  if (known == reports_.end()) {
    reports_.emplace(node, Heard{std::move(report), now});
    return true;
  }
  const format::NodeReport& before = known->second.report;
  const bool is_same_daemon = before.boot == report.boot;
  if (is_same_daemon && before.sequence > report.sequence) return false;  // Overtaken on its way.
  const bool is_repeated = is_same_daemon && before.sequence == report.sequence;
  known->second = Heard{std::move(report), now};
  return !is_repeated;
}

void HeardNodes::decree_received(const format::Decree& decree) {
  jobs_[decree.coordinator] = {decree.run, decree.incarnation, decree.members};
}

const format::NodeReport* HeardNodes::report_of(const std::string& node,
                                                const agree::JobShape& shape, const Digest& members,
                                                Time since) const {
  const auto heard = reports_.find(node);
  if (heard == reports_.end() || heard->second.heard_at < since) return nullptr;
  const format::NodeReport& report = heard->second.report;
  const bool is_same = report.run == shape.run && report.incarnation == shape.incarnation &&
                       report.members == members;
  return is_same ? &report : nullptr;
}

bool HeardNodes::has_ended(const std::string& node, const format::RunId& run) const {
  const auto heard = reports_.find(node);
  if (heard == reports_.end()) return false;
  return heard->second.report.has_ended || heard->second.report.run != run;
}

std::string HeardNodes::at_odds(const agree::JobShape& shape, const Digest& members,
                                const std::string& self,
                                const std::function<bool(const std::string& node)>& is_live) const {
  std::string text;
  const auto add = [&](std::string sentence) {
    text += (text.empty() ? "" : "; ") + std::move(sentence);
  };
  for (const auto& [node, job] : jobs_) {
    if (!is_live(node)) continue;
    if (job.run != shape.run) {
      add(
          fmt::format("node {} has another run of the job than {}: dir must name the same "
                      "directory, which all nodes share, on all of them",
                      node, self));
    } else if (job.incarnation != shape.incarnation) {
      add(
          fmt::format("node {} has incarnation {} of the list of nodes, {} has {}: start the "
                      "trainers of the older one with the newer list",
                      node, job.incarnation, self, shape.incarnation));
    } else if (job.members != members) {
      add(
          fmt::format("node {} was told otherwise who belongs to the job than {}: nodes, "
                      "addresses, world_size and replicas must be the same",
                      node, self));
    }
  }
  return text;
}

}  // namespace ckpt::node
