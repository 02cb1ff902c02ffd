#include "node/heard_nodes.hpp"

#include <fmt/format.h>

#include <utility>

namespace ckpt::node {

void HeardNodes::report_received(format::NodeReport report) {
  jobs_[report.node] = {report.run, report.incarnation, report.members};
  heard_[report.node].report = std::move(report);
}

void HeardNodes::decree_received(format::Decree decree) {
  jobs_[decree.coordinator] = {decree.run, decree.incarnation, decree.members};
  heard_[decree.coordinator].decree = std::move(decree);
}

void HeardNodes::stated(const std::string& node, std::uint64_t boot, std::uint64_t number) {
  heard_[node].boot = boot;
  heard_[node].stated = number;
}

const format::NodeReport* HeardNodes::report_of(const std::string& node,
                                                const agree::JobShape& shape,
                                                const Digest& members) const {
  const auto heard = heard_.find(node);
  if (heard == heard_.end() || !heard->second.report) return nullptr;
  const format::NodeReport& report = *heard->second.report;
  const bool is_same = report.run == shape.run && report.incarnation == shape.incarnation &&
                       report.members == members;
  const bool is_stated =
      report.boot == heard->second.boot && report.sequence == heard->second.stated;
  return is_same && is_stated ? &report : nullptr;
}

const format::Decree* HeardNodes::decree_of(const std::string& node, const agree::JobShape& shape,
                                            const Digest& members) const {
  const auto heard = heard_.find(node);
  if (heard == heard_.end() || !heard->second.decree) return nullptr;
  const format::Decree& decree = *heard->second.decree;
  const bool is_same = decree.run == shape.run && decree.incarnation == shape.incarnation &&
                       decree.members == members;
  const bool is_stated =
      decree.coordinator_boot == heard->second.boot && decree.sequence == heard->second.stated;
  return is_same && is_stated ? &decree : nullptr;
}

bool HeardNodes::has_ended(const std::string& node, const format::RunId& run) const {
  const auto heard = heard_.find(node);
  if (heard == heard_.end() || !heard->second.report) return false;
  return heard->second.report->has_ended || heard->second.report->run != run;
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
          fmt::format("node {} has another list of the job's members than {}: nodes, "
                      "addresses, world_size and replicas must be the same",
                      node, self));
    }
  }
  return text;
}

}  // namespace ckpt::node
