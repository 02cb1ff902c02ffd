#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "agree/commit_rule.hpp"
#include "agree/step_vote.hpp"
#include "node/job.hpp"
#include "node/job_storage.hpp"
#include "node/peers.hpp"
#include "node/replication.hpp"

namespace ckpt::node {

using nlohmann::json;

namespace {

json to_json(const std::optional<format::StepId>& at) {
  if (!at) return nullptr;
  return {{"timeline", at->timeline}, {"step", number(at->step)}};
}

const char* to_string(arena::Slot::State state) {
  switch (state) {
    case arena::Slot::State::free:
      return "free";
    case arena::Slot::State::filling:
      return "filling";
    case arena::Slot::State::filled:
      return "filled";
    case arena::Slot::State::sealed:
      return "sealed";
    case arena::Slot::State::quarantined:
      return "quarantined";
  }
  return "unknown";
}

const char* to_string(format::StartPhase phase) {
  switch (phase) {
    case format::StartPhase::idle:
      return "attached";
    case format::StartPhase::asks:
      return "restoring";
    case format::StartPhase::fresh:
      return "starting";
    case format::StartPhase::ready:
      return "restored, waits for the others";
    case format::StartPhase::failed:
      return "restore failed, votes again";
    case format::StartPhase::running:
      return "training";
  }
  return "unknown";
}

// Steps lost if `lost` died now: what the rest could restore, against the newest captured step.
json if_node_died(const agree::ClusterView& view, const agree::VoteRules& rules,
                  const std::string& lost) {
  agree::ClusterView rest = view;
  std::erase_if(rest.reports, [&](const format::NodeReport& r) { return r.node == lost; });
  const agree::Vote outcome = agree::vote(rest, rules);
  Step newest{};
  for (const format::NodeReport& node : view.reports) {
    for (const format::Holding& holding : node.holdings)
      newest = std::max(newest, holding.id.at.step);
    for (const format::RankReport& rank : node.ranks) newest = std::max(newest, rank.last_seen);
  }
  json loss;
  loss["node"] = lost;
  if (!outcome.chosen) {
    loss["resumes_from"] = nullptr;
    loss["steps_lost"] = number(newest);
  } else {
    loss["resumes_from"] = number(outcome.chosen->step);
    loss["from_storage"] = outcome.from_storage;
    loss["steps_lost"] =
        newest > outcome.chosen->step ? number(newest) - number(outcome.chosen->step) : 0;
  }
  return loss;
}

}  // namespace

json Job::status() const {
  json status;
  status["job"] = shape_.job;
  status["run"] = to_hex(shape_.run);
  status["node"] = node_;
  status["directory"] = directory_;
  status["world_size"] = shape_.world_size;
  status["coordinator"] = coordinator();
  status["committed"] = to_json(committed_);
  status["durable"] = to_json(durable_);
  status["degraded"] = decree_.degraded;
  status["waiting"] = decree_.waiting;
  status["ended"] = ended_at_.has_value();
  status["copies_go_to"] = replication_->targets();
  status["slot_bytes"] = slots_.bytes();
  status["nodes"] = json::array();
  for (const Node& node : shape_.nodes) {
    status["nodes"].push_back({{"name", node.name},
                               {"failure_domain", agree::domain_of(shape_, node.name)},
                               {"address", node.address},
                               {"live", node.name == node_ || peers_->is_live(node.name)}});
  }
  status["ranks"] = json::array();
  for (const auto& [number_of_rank, rank] : ranks_) {
    if (!rank.session) continue;
    const Session& session = *rank.session;
    status["ranks"].push_back({{"rank", number_of_rank},
                               {"attached", session.events != nullptr},
                               {"phase", to_string(session.phase)},
                               {"timeline", session.timeline},
                               {"last_seen", number(session.last_seen.value_or(Step{}))}});
  }
  status["slots"] = json::array();
  for (const auto& [number_of_rank, own] : slots_.all_own()) {
    for (const OwnSlot& own_slot : own.slots) {
      status["slots"].push_back({{"rank", number_of_rank},
                                 {"own", true},
                                 {"state", to_string(own_slot.slot->state())},
                                 {"step", number(own_slot.slot->id().at.step)},
                                 {"timeline", own_slot.slot->id().at.timeline},
                                 {"bytes", own_slot.slot->capacity()}});
    }
  }
  slots_.for_each_sealed([&](arena::Slot& slot, bool is_own) {
    if (is_own) return;
    status["slots"].push_back({{"rank", slot.id().rank},
                               {"own", false},
                               {"state", to_string(slot.state())},
                               {"step", number(slot.id().at.step)},
                               {"timeline", slot.id().at.timeline},
                               {"bytes", slot.capacity()}});
  });
  const agree::ClusterView seen = view();
  agree::VoteRules rules{std::nullopt, history_, restore_counts_,
                         context_.options.restores_without_progress_max};
  status["if_node_died"] = json::array();
  // Only the coordinator has everybody's report.
  if (is_coordinator()) {
    for (const Node& node : shape_.nodes) {
      status["if_node_died"].push_back(if_node_died(seen, rules, node.name));
    }
  }
  return status;
}

json Job::recover() const {
  agree::VoteRules rules{std::nullopt, history_, restore_counts_,
                         context_.options.restores_without_progress_max};
  const agree::Vote outcome = agree::vote(view(), rules);
  json result;
  result["job"] = shape_.job;
  result["node"] = node_;
  result["sees_all_nodes"] = is_coordinator();
  result["chosen"] = to_json(outcome.chosen);
  result["reason"] = outcome.reason;
  result["candidates"] = json::array();
  for (const agree::Candidate& candidate : outcome.candidates) {
    result["candidates"].push_back({{"timeline", candidate.at.timeline},
                                    {"step", number(candidate.at.step)},
                                    {"in_memory", candidate.is_in_memory},
                                    {"verdict", candidate.verdict}});
  }
  return result;
}

}  // namespace ckpt::node
