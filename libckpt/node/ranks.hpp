// Ranks: those of a job whose trainers were attached on this node, and the sessions of each.
//
// A rank has at most one session that counts. Older ones are fenced. They are kept until their
// process is proven gone: until then it can still write into the Slots that it had mapped.
// Threads: the engine's.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "node/session.hpp"

namespace ckpt::node {

struct Rank {
  std::uint32_t rank = 0;
  std::unique_ptr<Session> session;
  std::vector<std::unique_ptr<Session>> fenced;  // Their processes may still be alive.
  std::optional<Error> slots_failure;            // Why its Slots could not be made.
  std::uint64_t wanted_slot_bytes = 0;           // For the newest layout; 0: there is none.
  std::optional<TakeOver> taken_over;            // By the newest session.
};

// For people, behind the rank: that its Slots could not be made, and why.
std::string without_slots(const Error& why);

// Caller: the session that calls, and its rank. Both stay while the call is carried out.
struct Caller {
  Session& session;
  Rank& rank;
};

class Ranks {
 public:
  Rank& operator[](std::uint32_t rank);  // It is made where there is none.
  auto begin() { return ranks_.begin(); }
  auto end() { return ranks_.end(); }
  auto begin() const { return ranks_.begin(); }
  auto end() const { return ranks_.end(); }
  bool empty() const { return ranks_.empty(); }

  Session* find(SessionId id, Rank** rank = nullptr);  // Null: there is none.
  // Errors: not_found (no such session), unavailable (it is fenced).
  Result<Caller> active(SessionId id, std::string_view what, const std::string& job);
  bool have_trainer() const;  // A process may be alive.
  bool are_training() const;  // Some are.
  bool have_all_closed() const;
  void check_invariants() const;

  // A trainer came to this step. Kept when it dies: a restore says what was lost.
  void saw(const Session& session, Step step);
  const std::optional<format::StepId>& newest_seen() const { return newest_seen_; }

 private:
  std::map<std::uint32_t, Rank> ranks_;
  std::optional<format::StepId> newest_seen_;  // By any trainer of this node.
};

}  // namespace ckpt::node
