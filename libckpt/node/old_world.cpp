#include "node/old_world.hpp"

#include <algorithm>

#include "base/log.hpp"

namespace ckpt::node {

bool let_go_of_absent(const Ranks& ranks, SlotTable& slots) {
  std::set<std::uint32_t> absent;
  for (const auto& [rank, own] : slots.all_own()) absent.insert(rank);
  for (const auto& [number_of_rank, rank] : ranks) {
    const bool is_attached = rank.session != nullptr && rank.session->events != nullptr;
    // The processes of fenced sessions may still write there.
    if (is_attached || !rank.fenced.empty()) absent.erase(number_of_rank);
  }
  bool has_given = false;
  for (const std::uint32_t rank : absent) has_given = slots.let_go_free_own(rank) || has_given;
  return has_given;
}

void OldWorld::changed() {
  for (const auto& [rank, own] : slots_.all_own()) ranks_before_.insert(rank);
}

// It stays given up for as long as this world trains: another Start may bring it back.
void OldWorld::update() {
  if (!may_give_up()) {
    given_up_.reset();
    return;
  }
  if (is_going_ && !slots_.has_occupied(facts_.committed.value())) try_again();
  const Error* const why = lack_of_memory();
  if (given_up_ || why == nullptr || !slots_.has_occupied(facts_.committed.value())) return;
  if (!ranks_before_.empty()) return;  // Their Slots go first, and may be enough.
  log_warning(
      "job={} step={} in memory gives way to the Slots of {} ranks: storage has it, and "
      "they do not fit beside it: {}",
      facts_.shape.job, number(facts_.committed->step), facts_.shape.world_size, why->message());
  given_up_ = facts_.committed;
  is_going_ = true;
  life_.touch();
}

bool OldWorld::may_give_up() const {
  const auto& start = facts_.decree.start;
  const bool is_begun = start && start->base && start->outcome.is_go() && start->is_of_others();
  if (!is_begun || !ranks_.are_training() || facts_.committed != start->base) return false;
  const format::StepId at = *start->base;
  const bool is_damaged = std::ranges::any_of(
      storage_.damaged(), [at](const format::Damage& damage) { return damage.id.at == at; });
  return facts_.is_stored(at) && !is_damaged && storage_.gone().empty();
}

const Error* OldWorld::lack_of_memory() const {
  for (const auto& [number_of_rank, rank] : ranks_) {
    const Session* session = rank.session.get();
    const bool trains = session != nullptr && session->phase == format::StartPhase::running;
    const bool lacks = rank.slots_failure && rank.slots_failure->code() == Errc::exhausted;
    if (trains && lacks) return &*rank.slots_failure;
  }
  return nullptr;
}

void OldWorld::try_again() {
  is_going_ = false;
  for (auto& [number_of_rank, rank] : ranks_) {
    if (!rank.slots_failure || rank.slots_failure->code() != Errc::exhausted) continue;
    rank.slots_failure.reset();
    if (rank.session) rank.session->slots_sent = false;
  }
  life_.touch();
}

// Ranks that did not come back here have no use for their Slots; what these hold of the restored
// step stays until a newer one is committed, or it is given up.
void OldWorld::let_go() {
  const std::set<std::uint32_t> before = std::exchange(ranks_before_, {});
  for (const std::uint32_t number_of_rank : before) {
    const bool is_here = std::ranges::any_of(ranks_, [&](const auto& entry) {
      return entry.first == number_of_rank && entry.second.session != nullptr;
    });
    if (!is_here) slots_.let_go_own(number_of_rank);
  }
  const auto& start = facts_.decree.start;
  const bool needs_others = start->is_of_others() && facts_.committed == start->base;
  if (!needs_others) slots_.let_go_replicas_from(facts_.shape.world_size);
  if (!before.empty() && lack_of_memory() != nullptr) try_again();
}

}  // namespace ckpt::node
