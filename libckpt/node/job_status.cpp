#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "agree/commit_rule.hpp"
#include "agree/overtaken.hpp"
#include "agree/step_vote.hpp"
#include "agree/timelines.hpp"
#include "node/job.hpp"

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
    case format::StartPhase::saves:
      return "starting";
    case format::StartPhase::ready:
      return "restored, waits for the others";
    case format::StartPhase::failed:
      return "restore failed, votes again";
    case format::StartPhase::refused:
      return "refused what was restored";
    case format::StartPhase::running:
      return "training";
  }
  return "unknown";
}

Step newest_step(const agree::ClusterView& view) {
  Step newest{};
  for (const format::NodeReport& node : view.reports) {
    for (const format::Holding& holding : node.holdings)
      newest = std::max(newest, holding.id.at.step);
    for (const format::RankReport& rank : node.ranks)
      newest = std::max(newest, rank.last_seen.value_or(Step{}));
  }
  return newest;
}

// Steps lost if a node died now: from the step that the rest could restore to the newest captured.
json if_node_died(const agree::Survival& survival, Step newest, const agree::History& history,
                  const std::optional<format::StepId>& durable, bool is_damaged) {
  std::optional<format::StepId> resumes = survival.chosen;
  bool from_storage = survival.from_storage;
  // The catalog is read only when a restore needs it; the published step is known without it.
  const bool is_stored = durable && !agree::is_fenced(history, *durable) && !is_damaged;
  if (is_stored && (!resumes || *resumes < *durable)) {
    resumes = durable;
    from_storage = true;
  }
  const std::uint64_t base = resumes ? number(resumes->step) : 0;
  json loss;
  loss["node"] = survival.node;
  loss["resumes_from"] = to_json(resumes);
  loss["from_storage"] = resumes && from_storage;
  loss["is_damaged"] = !resumes && is_damaged;
  loss["steps_lost"] = number(newest) > base ? number(newest) - base : 0;
  return loss;
}

// A restore has met damage in what storage has of the step.
bool is_damaged_there(const agree::DamagedShards& damaged, format::StepId at) {
  const auto found = damaged.find(at);
  return found != damaged.end() && std::ranges::any_of(found->second, [](const auto& shard) {
           return shard.second != Errc::io;
         });
}

struct StepHeld {
  std::uint32_t saved_by = 0;  // The number of ranks that made it.
  std::uint32_t ranks = 0;     // With a copy in memory.
  std::size_t copies = 0;      // Failure domains that hold the rank with the fewest.
};

StepHeld held(const agree::ClusterView& view, format::StepId at) {
  StepHeld result;
  result.copies = SIZE_MAX;
  const agree::StepCopies shards = agree::copies_of_any(view, at);
  for (const auto& copies : shards) {
    result.ranks += copies ? 1 : 0;
    result.copies = std::min(result.copies, copies ? copies->domains : 0);
  }
  result.saved_by = static_cast<std::uint32_t>(shards.size());
  if (result.ranks > 0 || !view.published) return result;
  const auto stored = std::ranges::find(*view.published, at, &agree::PublishedStep::at);
  if (stored != view.published->end()) result.saved_by = stored->world_size;
  return result;
}

// Newest first: every step that is in memory or was committed or published. "abandoned" is what the
// code calls fenced: a restore to an older step has given it up, here or by another daemon (then
// the history of a look at storage says so first, and the step is called *overtaken*).
json steps_of(const agree::ClusterView& view, const agree::History& history,
              const std::optional<format::StepId>& committed,
              const std::optional<format::StepId>& durable) {
  std::set<format::StepId, std::greater<>> steps, published;
  for (const format::NodeReport& node : view.reports) {
    for (const format::Holding& holding : node.holdings) steps.insert(holding.id.at);
  }
  if (view.published) {
    for (const agree::PublishedStep& step : *view.published) published.insert(step.at);
  }
  if (durable) published.insert(*durable);
  if (committed) steps.insert(*committed);
  steps.insert(published.begin(), published.end());

  const std::size_t needed = agree::required_copies(view);
  const agree::DamagedShards damaged = agree::damaged_shards(view);
  json list = json::array();
  for (const format::StepId& at : steps) {
    const StepHeld in_memory = held(view, at);
    const bool is_damaged = is_damaged_there(damaged, at);
    const bool is_durable = published.contains(at) && !is_damaged;
    const char* level = "partial";
    if (in_memory.copies > 0) level = "captured";
    if (needed > 1 && in_memory.copies >= needed) level = "replicated";
    if (committed == at) level = "committed";
    if (is_durable) level = "durable";
    list.push_back({{"timeline", at.timeline},
                    {"step", number(at.step)},
                    {"level", level},
                    {"saved_by", in_memory.saved_by},
                    {"ranks_in_memory", in_memory.ranks},
                    {"copies", in_memory.copies},
                    {"on_storage", is_durable},
                    {"damaged_there", is_damaged},
                    {"abandoned", agree::is_fenced(history, at)}});
  }
  return list;
}

json slot_status(std::uint32_t rank, bool is_own, const arena::Slot& slot) {
  json status = {{"rank", rank},
                 {"own", is_own},
                 {"state", to_string(slot.state())},
                 {"bytes", slot.capacity()},
                 {"timeline", nullptr},
                 {"step", nullptr}};
  if (slot.state() == arena::Slot::State::free) return status;
  status["timeline"] = slot.id().at.timeline;
  status["step"] = number(slot.id().at.step);
  return status;
}

// Own Slots in whatever state they are; of other nodes' copies, those that could be read.
json slots_status(const SlotTable& slots) {
  json list = json::array();
  for (const auto& [number_of_rank, own] : slots.all_own()) {
    for (const OwnSlot& own_slot : own.slots)
      list.push_back(slot_status(number_of_rank, true, *own_slot.slot));
  }
  slots.for_each_sealed([&](arena::Slot& slot, bool is_own) {
    if (!is_own) list.push_back(slot_status(slot.id().rank, false, slot));
  });
  return list;
}

json nodes_status(const JobFacts& facts, const Peers& peers) {
  json list = json::array();
  for (const Node& node : facts.shape.nodes) {
    list.push_back({{"name", node.name},
                    {"failure_domain", agree::domain_of(facts.shape, node.name)},
                    {"address", node.address},
                    {"live", node.name == facts.node || peers.is_live(node.name)}});
  }
  return list;
}

json restored_status(const std::optional<Brought>& restored) {
  if (!restored) return nullptr;
  return {{"timeline", restored->at.timeline},
          {"step", number(restored->at.step)},
          {"source", to_string(restored->source)},
          {"bytes", restored->bytes},
          {"bytes_from_storage", restored->bytes_from_storage}};
}

json ranks_status(const Ranks& ranks, const RestoreRunner& restores) {
  json list = json::array();
  for (const auto& [number_of_rank, rank] : ranks) {
    if (!rank.session) continue;
    const Session& session = *rank.session;
    json seen = session.last_seen ? json(number(*session.last_seen)) : json();
    list.push_back({{"rank", number_of_rank},
                    {"attached", session.events != nullptr},
                    {"process", session.process},
                    {"phase", to_string(session.phase)},
                    {"timeline", session.timeline},
                    {"last_seen", std::move(seen)},
                    {"restored", restored_status(restores.brought_to(number_of_rank, session))}});
  }
  return list;
}

json missing_ranks_json(const agree::ClusterView& view) {
  std::set<std::uint32_t> present;
  for (const format::NodeReport& node : view.reports) {
    for (const format::RankReport& rank : node.ranks) present.insert(rank.rank);
  }
  json list = json::array();
  for (std::uint32_t rank = 0; rank < view.shape.world_size; ++rank) {
    if (!present.contains(rank)) list.push_back(rank);
  }
  return list;
}

json giving_way_status(const GivingWay& giving_way) {
  const auto rate = [&](BackgroundWork work) {
    const std::uint64_t bytes_per_second = giving_way.rate(work);
    return bytes_per_second == 0 ? json() : json(bytes_per_second);
  };
  const auto ratio = [&](BackgroundWork work) {
    const std::optional<double> step_ratio = giving_way.step_ratio(work);
    return step_ratio ? json(*step_ratio) : json();
  };
  return {{"flush_rate", rate(BackgroundWork::flush)},
          {"replica_rate", rate(BackgroundWork::copies)},
          {"step_beside_flush", ratio(BackgroundWork::flush)},
          {"step_beside_copies", ratio(BackgroundWork::copies)}};
}

json copies_status(const storage::CopiesDiffer& copies) {
  if (copies.saves == 0) return nullptr;
  return {{"saves", copies.saves},          {"timeline", copies.at.timeline},
          {"step", number(copies.at.step)}, {"tensors", copies.tensors},
          {"tensor", copies.first.name},    {"ranks", copies.first.ranks}};
}

json text_or_null(const std::string& text) {
  return text.empty() ? json() : json(text);
}

json missing_status(const CoverageCheck& coverage) {
  const gather::Missing& missing = coverage.missing();
  if (missing.tensors == 0 || !coverage.checked()) return nullptr;
  return {{"timeline", coverage.checked()->timeline},
          {"step", number(coverage.checked()->step)},
          {"tensors", missing.tensors},
          {"tensor", missing.tensor},
          {"what", missing.what},
          {"contradiction", text_or_null(missing.contradiction)}};
}

json second_status(const SecondPlace* place, const std::optional<StorageSeen>& look) {
  if (place == nullptr) return {};
  json status = place->status();
  if (look && look->places.size() > 1) {
    status["newest"] = to_json(look->places[1].newest);
    status["trouble"] = text_or_null(look->places[1].trouble);
  }
  return status;
}

std::string joined(const std::string& first, const std::string& second) {
  return first + (first.empty() || second.empty() ? "" : "; ") + second;
}

}  // namespace

std::string Job::waiting() const {
  if (agreement_.is_announcing())
    return "the record of timelines is written in " + facts_.directory;
  // A start may wait because a node does not answer us; the coordinator cannot know that of others.
  return facts_.decree.waiting.empty() ? std::string()
                                       : joined(facts_.decree.waiting, peers_.trouble());
}

std::string Job::degraded() const {
  const Time now = facts_.clock().now();
  const std::string copies = joined(replication_.trouble(now), storage_.trouble(now));
  const std::string at_odds = peers_.heard_nodes().at_odds(
      facts_.shape, facts_.members, facts_.node,
      [this](const std::string& node) { return peers_.is_live(node); });
  const std::string of_all = joined(facts_.decree.degraded, facts_.decree.lost_part);
  // The coordinator says the same to all nodes.
  std::string captures = captures_.trouble();
  if (of_all.find(captures) != std::string::npos) captures.clear();
  return joined(joined(joined(joined(of_all, peers_.trouble()), copies), at_odds), captures);
}

bool Job::begin_look() {
  if (!is_opened_ || !peers_.is_coordinator() || facts_.directory.empty()) return false;
  look_.begin();
  return true;
}

agree::ClusterView Job::view_with(const StorageSeen& seen) const {
  agree::ClusterView view = agreement_.view();
  view.published = seen.published;
  view.damaged_published = seen.damaged;
  view.misplaced_published = seen.misplaced;
  view.unreadable = seen.trouble();
  const std::string overtaken = agree::describe_overtaken(view, facts_.history, seen.history);
  if (!overtaken.empty()) view.overtaken = overtaken;
  return view;
}

// Names trouble that the job does not know yet, because nobody has looked since.
std::string Job::trouble_seen(const StorageSeen& seen) const {
  const agree::ClusterView& view = agreement_.view();
  std::string trouble = seen.trouble();
  const auto& durable = facts_.durable;
  const bool was_there = durable && durable == seen.durable_before;
  // It was removed lawfully where a newer one is, which retention and `ckpt gc` wait for.
  const auto is_it_or_newer = [&](const agree::PublishedStep& step) {
    return step.at == *durable || (step.at > *durable && !agree::is_fenced(seen.history, step.at));
  };
  if (trouble.empty() && was_there && std::ranges::none_of(seen.published, is_it_or_newer)) {
    trouble = fmt::format("step {} was stored in {}, and is not there any more",
                          number(durable->step), facts_.dir);
  }
  return joined(trouble, agree::describe_overtaken(view, facts_.history, seen.history));
}

json Job::status() const {
  const std::optional<StorageSeen> look = look_.just_seen();
  const agree::ClusterView seen = look ? view_with(*look) : agreement_.view();
  const agree::History history = look ? look->history : facts_.history;
  std::optional<format::StepId> durable = facts_.durable;
  // Else one was stored since the look.
  const bool is_newest = look && durable == look->durable_before;
  if (is_newest && look->trouble().empty()) durable = look->newest();
  json status;
  status["job"] = facts_.shape.job;
  status["run"] = to_hex(facts_.shape.run);
  status["node"] = facts_.node;
  status["directory"] = text_or_null(facts_.directory);
  status["second_place"] = second_status(storage_.second(), look);
  status["storage_reached"] = look ? json(look->trouble().empty()) : json();
  status["gone_from_directory"] = text_or_null(storage_.gone());
  status["world_size"] = facts_.shape.world_size;
  status["coordinator"] = peers_.coordinator();
  status["sees_all_nodes"] = peers_.is_coordinator();
  status["committed"] = to_json(facts_.committed);
  status["durable"] = to_json(durable);
  status["degraded"] = text_or_null(joined(degraded(), look ? trouble_seen(*look) : ""));
  status["waiting"] = text_or_null(waiting());
  const Healed& healed = healing_.healed();
  status["healed"] = {
      {"copies", healed.copies}, {"files", healed.files}, {"newest", text_or_null(healed.newest)}};
  status["missing_pieces"] = missing_status(storage_.coverage());
  status["copies_differ"] = copies_status(storage_.copies_differ());
  status["ended"] = facts_.ended_at.has_value();
  const bool is_waiting = !ranks_.have_trainer() && !facts_.ended_at && slots_.bytes() > 0;
  const Duration kept = sessions_.idle().left(facts_.clock().now());
  status["memory_kept_seconds"] = is_waiting ? json(kept / std::chrono::seconds(1)) : json();
  // Steps in memory alone are lost with it, unless somebody saves them elsewhere.
  status["storage_refuses"] = storage_.failures().are_refusals();
  status["copies_go_to"] = replication_.targets();
  const CopiesSent& sent = replication_.copies_sent();
  status["copies_sent"] = {{"bytes", sent.bytes}, {"bytes_unchanged", sent.bytes_unchanged}};
  const flush::FlusherStatus flushed = storage_.flushed();
  status["flushed"] = {{"bytes", flushed.bytes_written}, {"bytes_shared", flushed.bytes_shared}};
  status["slot_bytes"] = slots_.bytes();
  status["giving_way"] = giving_way_status(giving_way_);
  status["nodes"] = nodes_status(facts_, peers_);
  status["ranks"] = ranks_status(ranks_, restores_);
  status["taken_over"] = json::array();
  for (const auto& [number_of_rank, rank] : ranks_)
    if (rank.taken_over && !rank.taken_over->is_killed)
      status["taken_over"].push_back(
          status_of(*rank.taken_over, number_of_rank, facts_.clock().now()));
  status["slots"] = slots_status(slots_);
  const agree::VoteRules rules{std::nullopt, history, facts_.restore_counts};
  status["steps"] = steps_of(seen, history, facts_.committed, durable);
  status["if_node_died"] = json::array();
  status["ranks_missing"] = json::array();
  // Only the coordinator has everybody's report.
  if (peers_.is_coordinator()) {
    status["ranks_missing"] = missing_ranks_json(seen);
    const Step newest = newest_step(seen);
    // While the other steps on storage are not known, damage says too little of what is left.
    const bool is_damaged =
        durable && seen.published && is_damaged_there(agree::damaged_shards(seen), *durable);
    for (const agree::Survival& survival : agree::votes_without_each(seen, rules)) {
      json loss = if_node_died(survival, newest, history, durable, is_damaged);
      // Steps that it had not saved at its end are no loss of any node's.
      if (facts_.ended_at) loss["steps_lost"] = 0;
      status["if_node_died"].push_back(std::move(loss));
    }
  }
  return status;
}

Status Job::carry_out(Caller by, control::AskStatus) {
  if (by.session.events != nullptr) by.session.events->tell(control::Answer{{}, status().dump()});
  return {};
}

json Job::recover() const {
  const std::optional<StorageSeen> look = look_.just_seen();
  const agree::VoteRules rules{std::nullopt, look ? look->history : facts_.history,
                               facts_.restore_counts};
  agree::Vote outcome = agree::vote(look ? view_with(*look) : agreement_.view(), rules);
  if (look && outcome.chosen) outcome.reason = joined(outcome.reason, look->trouble());
  json result;
  result["job"] = facts_.shape.job;
  result["node"] = facts_.node;
  result["coordinator"] = peers_.coordinator();
  result["sees_all_nodes"] = peers_.is_coordinator();
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
