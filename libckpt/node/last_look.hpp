// LastLook: looks whether the newest stored step is still on storage before its memory is freed.
//
//   unasked --the end is wanted--> looking --> there
//                                     ^   \--> gone --a flush of it has ended--+
//                                     +----------------------------------------+
//
// Somebody may have removed the checkpoint by hand while the job had it in memory. Storage that
// does not answer is believed to have it, as before: an end must not hang on that.
//
// Threads: the engine's. Lifetime: the Job's; its coroutines hold the Job.
#pragma once

#include <optional>

#include "node/job_facts.hpp"
#include "node/job_life.hpp"
#include "node/job_storage.hpp"

namespace ckpt::node {

class LastLook {
 public:
  // `state` is the one in the facts. The agreement writes it, too, where it has published the step
  // again.
  LastLook(const JobFacts& facts, agree::LastLookState& state, JobLife& life, JobStorage& storage)
      : facts_(facts), state_(state), life_(life), storage_(storage) {}

  void update(bool is_end);
  // Nothing that this node could still do would bring the step to storage.
  bool is_done(bool is_held) const;

 private:
  bool has_been_stored_again(format::StepId at);
  asio::awaitable<void> run(format::StepId at);

  const JobFacts& facts_;
  agree::LastLookState& state_;
  JobLife& life_;
  JobStorage& storage_;
  std::optional<format::StepId> about_;  // The step that the newest look was for.
  bool is_asked_ = false;                // It was looked for in this end.
  bool is_stored_again_ = false;         // A flush of it is under way.
};

}  // namespace ckpt::node
