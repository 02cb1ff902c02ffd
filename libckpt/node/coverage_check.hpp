// CoverageCheck: says once, after the first step of a job was stored, which declared tensors lack
// elements: a rank that forgets its piece would else be noticed at a restore.
//
// Where this node coordinates, it reads the descriptions of the stored step, in the background.
//
// Threads: the engine's. Lifetime: the Job's; its coroutines hold the Job.
#pragma once

#include <cstdint>
#include <optional>

#include "gather/coverage.hpp"
#include "node/job_facts.hpp"
#include "node/job_life.hpp"
#include "node/job_storage.hpp"

namespace ckpt::node {

class CoverageCheck {
 public:
  CoverageCheck(const JobFacts& facts, JobLife& life, JobStorage& storage)
      : facts_(facts), life_(life), storage_(storage) {}

  void update(bool is_coordinator);
  const gather::Missing& missing() const { return missing_; }
  const std::optional<format::StepId>& checked() const { return checked_; }

 private:
  asio::awaitable<void> run(format::StepId at);
  Task<void> check(format::StepId at);

  const JobFacts& facts_;
  JobLife& life_;
  JobStorage& storage_;
  gather::Missing missing_;
  std::optional<format::StepId> checked_;  // That step, once for each number of ranks.
  std::uint32_t checked_world_ = 0;
};

}  // namespace ckpt::node
