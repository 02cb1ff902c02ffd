#include "node/ranks.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ckpt::node {

std::string without_slots(const Error& why) {
  return "has no Slots to save in: " + why.message();
}

Rank& Ranks::operator[](std::uint32_t rank) {
  Rank& it = ranks_[rank];
  it.rank = rank;
  return it;
}

Session* Ranks::find(SessionId id, Rank** rank) {
  for (auto& [number_of_rank, candidate] : ranks_) {
    if (rank != nullptr) *rank = &candidate;
    if (candidate.session && candidate.session->id == id) return candidate.session.get();
    for (auto& fenced : candidate.fenced) {
      if (fenced->id == id) return fenced.get();
    }
  }
  return nullptr;
}

Result<Caller> Ranks::active(SessionId id, std::string_view what, const std::string& job) {
  Rank* rank = nullptr;
  Session* session = find(id, &rank);
  if (session == nullptr) {
    return fail(Errc::not_found, fmt::format("{}: no such session in job {}", what, job));
  }
  if (session->is_fenced) {
    return fail(Errc::unavailable, fmt::format("{}: fenced by a newer trainer of job {} rank {}",
                                               what, job, rank->rank));
  }
  return Caller{*session, *rank};
}

bool Ranks::have_trainer() const {
  return std::any_of(begin(), end(), [](const auto& entry) {
    const Rank& rank = entry.second;
    return !rank.fenced.empty() || (rank.session && rank.session->events != nullptr);
  });
}

bool Ranks::are_training() const {
  return std::any_of(begin(), end(), [](const auto& entry) {
    return entry.second.session && entry.second.session->phase == format::StartPhase::running;
  });
}

bool Ranks::have_all_closed() const {
  return std::all_of(begin(), end(), [](const auto& entry) {
    return entry.second.session && entry.second.session->close_deadline;
  });
}

// A session that has not begun has no timeline yet, or that of what it asked before.
void Ranks::saw(const Session& session, Step step) {
  if (session.phase != format::StartPhase::running || session.timeline == 0) return;
  const format::StepId at{session.timeline, step};
  if (!newest_seen_ || at > *newest_seen_) newest_seen_ = at;
  CKPT_ASSERT(*newest_seen_ >= at);
}

void Ranks::check_invariants() const {
  if (newest_seen_) CKPT_ASSERT(newest_seen_->timeline != 0);
  for (const auto& [number_of_rank, rank] : ranks_) {
    CKPT_ASSERT(rank.rank == number_of_rank);
    if (rank.session) {
      CKPT_ASSERT(!rank.session->is_fenced);
      rank.session->check_invariants();
    }
    for (const auto& older : rank.fenced) CKPT_ASSERT(older->is_fenced);
  }
}

}  // namespace ckpt::node
