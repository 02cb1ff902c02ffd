// Laws about losses that cost no step at once: missing copies, dropped steps, late answers.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "agree/timelines.hpp"
#include "base/log.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

namespace {

constexpr Duration look_again_after = std::chrono::milliseconds(200);
constexpr Duration launch_time_max = std::chrono::seconds(60);
// A node is missed after 2.5 s and dialled again every 2 s; a copy is tried again every 2 s.
constexpr Duration copies_time_max = std::chrono::seconds(15);
constexpr Duration heartbeat = std::chrono::milliseconds(500);

}  // namespace

void World::skipped(std::uint64_t group, format::StepId at) {
  skipped_.insert({group, at});
}

// A step is given up for all ranks only if one of them skipped it, or lost it with its memory. A
// restore in mid-training may take a Slot.
void World::dropped(std::uint64_t group, format::StepId at) {
  if (!are_links_cut_) given_up_.insert(at);
  const bool is_told_late = group != group_;
  if (is_told_late || options_.trainers_retract || memory_disturbed_in_ == group) return;
  if (skipped_.contains({group, at})) return;
  violated(fmt::format("needed: timeline {} step {} was given up, and no rank had skipped it",
                       at.timeline, number(at.step)));
}

void World::came_to(format::StepId at) {
  Step& newest = came_to_[at.timeline];
  newest = std::max(newest, at.step);
}

// Steps that an earlier restore gave up may be counted once more: the nodes that knew of it may be
// gone, and storage may have been silent then.
void World::check_newest_seen(const control::Begun& begun) {
  agree::History history;
  for (const auto& [timeline, restored] : began_history_)
    if (timeline != begun.timeline) history.push_back({timeline, restored});
  began_history_[begun.timeline] = begun.restored;
  if (!begun.newest_seen || !begun.restored) return;
  Step newest = begun.restored->step;
  for (const auto& [timeline, step] : came_to_)
    if (agree::leads_to(history, *begun.restored, timeline)) newest = std::max(newest, step);
  if (*begun.newest_seen >= begun.restored->step && *begun.newest_seen <= newest) return;
  violated(fmt::format("lost: restored timeline {} step {}, and step {} was counted, not {}",
                       begun.restored->timeline, number(begun.restored->step),
                       number(*begun.newest_seen), number(newest)));
}

// Whether the newest committed step has all copies that it can have, as its coordinator sees it.
bool World::has_all_copies() const {
  const std::string text = status_of(members_.front());
  if (text.empty()) return false;
  const auto status = nlohmann::json::parse(text);
  const std::size_t wanted = std::min<std::size_t>(2, members_.size());
  for (const auto& job : status.at("jobs")) {
    for (const auto& step : job.at("steps")) {
      const bool is_it = committed_ && step.at("timeline") == committed_->timeline &&
                         step.at("step") == number(committed_->step);
      if (is_it && step.at("copies") >= wanted) return true;
    }
  }
  return false;
}

// A node is lost, and all begin again. Nobody captures: what they began from is all there is, and
// must not stay on one node.
void World::check_redundancy() {
  is_training_paused_ = true;
  const std::string victim = members_[random_.below(members_.size())];
  kill_machine(victim);
  if (random_.one_in(2)) start_machine(victim);  // The same host comes back, its memory empty.
  const auto have_all_begun = [this] {
    return !trainers_.empty() &&
           std::all_of(trainers_.begin(), trainers_.end(),
                       [](const auto& trainer) { return trainer && trainer->is_training(); });
  };
  advance(look_again_after);
  for (const Time end = now_ + launch_time_max; now_ < end && !have_all_begun();)
    advance(look_again_after);
  if (!have_all_begun()) return violated("redundancy: nobody began again in calm");
  const Time end = now_ + copies_time_max;
  // Storage alone may have a part of a step that another number of ranks saved.
  const auto is_safe = [this] {
    return has_all_copies() || (options_.is_stored && committed_ && durable_ >= committed_);
  };
  while (committed_ && now_ < end && !is_safe()) advance(look_again_after);
  if (committed_ && !is_safe()) {
    violated(fmt::format("redundancy: timeline {} step {} has no second copy in calm",
                         committed_->timeline, number(committed_->step)));
  }
  is_training_paused_ = false;
}

std::uint64_t World::copies_healed_on(const std::string& machine) const {
  const std::string text = status_of(machine);
  if (text.empty()) return 0;
  std::uint64_t healed = 0;
  const auto status = nlohmann::json::parse(text);
  for (const auto& job : status.at("jobs"))
    healed += job.at("healed").at("copies").get<std::uint64_t>();
  return healed;
}

// Bits flip in the memory of a node, in its copies too. Nobody reads them: the node itself must
// notice, and get them again.
void World::check_healing() {
  is_training_paused_ = true;
  advance(2 * heartbeat + std::chrono::seconds(1));
  if (committed_ && members_.size() > 1 && has_all_copies()) {
    const std::string victim = members_[random_.below(members_.size())];
    const std::uint64_t before = copies_healed_on(victim);
    flip_memory_of(victim, flips_to_hit_all);
    const Time end = now_ + verify_every + copies_time_max;
    const auto is_healed = [&] { return copies_healed_on(victim) > before && has_all_copies(); };
    while (now_ < end && !is_healed()) advance(look_again_after);
    if (!is_healed())
      violated(fmt::format("healing: damage in the memory of {} is not healed in calm", victim));
  }
  is_training_paused_ = false;
}

void World::count_unchanged() {
  for (const std::string& name : names_of_machines()) {
    const auto status = nlohmann::json::parse(status_of(name));
    for (const auto& job : status["jobs"])
      outcome_.bytes_unchanged += job["copies_sent"]["bytes_unchanged"].get<std::uint64_t>();
  }
}

// A close ends when it may, or at its deadline: also where storage hangs.
void World::check_close() {
  is_training_paused_ = true;  // A trainer that closes begins no other step.
  advance(std::chrono::seconds(2));
  if (random_.one_in(2)) disk_.stall_until(now_ + std::chrono::hours(1));
  const std::chrono::seconds deadline(1 + random_.below(10));
  std::vector<std::shared_ptr<SimTrainer>> closing;
  for (const auto& trainer : trainers_) {
    if (!trainer || !trainer->is_training()) continue;
    trainer->close(deadline);
    closing.push_back(trainer);
  }
  advance(deadline + 2 * heartbeat);
  for (const auto& trainer : closing) {
    if (trainer->is_dead() || trainer->is_closed()) continue;
    violated(fmt::format("deadline: rank {} waits for its close, beyond {} s", trainer->rank(),
                         deadline.count()));
  }
  is_training_paused_ = false;
  disk_.stall_until(now_);
}

}  // namespace ckpt::sim
