// JobFacts: read by all parts of a job. The Job and its agreement write it (LastLook and OldWorld
// one field each); for everybody else it is const.
//
// Threads: the engine's. Lifetime: the Job's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agree/cluster_view.hpp"
#include "agree/timelines.hpp"
#include "format/agreement.hpp"
#include "node/context.hpp"
#include "storage/places.hpp"

namespace ckpt::node {

struct JobFacts {
  EngineContext& context;
  const std::uint64_t boot;  // This job's: a new one whenever it is opened.

  // As its trainers attached.
  agree::JobShape shape;
  Digest members;  // agree::members_digest(shape).
  std::string node, secret;
  std::string dir;        // The option, as the first trainer gave it.
  std::string directory;  // The first place of it; empty: memory only.
  std::optional<storage::SecondDirectory> second;

  // As agreed with the other nodes.
  format::Decree decree;  // Newest obeyed.
  agree::History history;
  std::vector<format::RestoreCount> restore_counts;
  std::optional<format::StepId> committed, durable;
  std::optional<format::StepId> given_up;  // By OldWorld: storage alone serves it.
  std::optional<Time> ended_at;
  agree::LastLookState last_look = agree::LastLookState::unasked;  // By this node.

  Clock& clock() const { return context.seams.clock; }
  bool is_fenced(format::StepId at) const { return agree::is_fenced(history, at); }
  bool is_newest_committed(format::StepId at) const { return committed && at == *committed; }
  // Neither a restore nor a flush needs it any more.
  bool is_useless(format::StepId at) const {
    return is_fenced(at) || (committed && at < *committed) || given_up == at;
  }
  bool is_stored(format::StepId at) const { return durable == at && !is_fenced(at); }
};

}  // namespace ckpt::node
