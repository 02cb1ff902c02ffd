// FlushFailures: what went wrong with this node's flushes and publications.
//
// The directory refuses a publication when it belongs to a later timeline, or to another run. That
// says nothing of the steps of a later timeline of ours. No other failure is a refusal: somebody
// may move away what is in the way, or make the bucket.
//
// Threads: the engine's. Lifetime: the JobStorage's.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <string>
#include <utility>

#include "node/job_facts.hpp"

namespace ckpt::node {

class FlushFailures {
 public:
  explicit FlushFailures(const JobFacts& facts) : facts_(facts) {}

  void add(const Error& error) {
    ++count_;
    newest_ = error.message();
  }
  std::uint64_t running_timeline() const {
    return facts_.decree.start ? facts_.decree.start->timeline : 0;
  }
  void publication_began() { is_refused_ = false; }
  void refused() { is_refused_ = true; }  // By the directory, and before the publication ends.
  // `timeline` ran when the publication began.
  void publication_ended(const Status& status, std::uint64_t timeline) {
    if (status || std::exchange(refused_in_, timeline) != timeline) refusals_ = 0;
    refusals_ += !status && is_refused_ ? 1 : 0;
  }

  // Attempts that failed, and why the last one did.
  std::uint64_t count() const { return count_; }
  const std::string& newest() const { return newest_; }
  // For steps that the directory will never take. A start frees them: it goes on from others.
  std::string way_out() const {
    return "`ckpt cp memory:" + facts_.shape.job +
           " PLACE` saves the newest one elsewhere, before a trainer starts again";
  }
  // On the coordinator's node: no time brings the steps of this timeline to storage.
  bool are_refusals() const { return refusals_ >= 2 && refused_in_ == running_timeline(); }

 private:
  const JobFacts& facts_;
  std::uint64_t count_ = 0;
  std::string newest_;
  bool is_refused_ = false;       // The publication that is under way.
  std::uint32_t refusals_ = 0;    // Since something was published.
  std::uint64_t refused_in_ = 0;  // The timeline that ran then.
};

}  // namespace ckpt::node
