// UnaskedTensors: warns of tensors of a restored step that no rank asked for, since the steps that
// are saved from then on are without them.
//
// It is known at once where one node has all ranks. Else the coordinator sees it in the first step
// that they commit. Adapters that choose their targets late report it themselves.
//
// Threads: the engine's; names are compared on the Compute.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "format/start.hpp"
#include "gather/shard_source.hpp"
#include "node/job_facts.hpp"
#include "node/job_life.hpp"
#include "node/ranks.hpp"

namespace ckpt::node {

// Rank 0 of the restore calls it. Reads the records of all shards; one that cannot be read ends it
// without a warning.
asio::awaitable<void> warn_of_unasked(const JobFacts& facts, const Ranks& ranks,
                                      gather::ShardSource& shards, const format::Start& start);

// UnsavedWatch: compares the names in a step that another number of ranks saved with those in the
// first step that is committed after it. Lifetime: the Job's.
class UnsavedWatch {
 public:
  using OpenShards = std::function<std::shared_ptr<gather::ShardSource>()>;
  struct Steps {
    std::function<OpenShards(const format::Start&)> restored;
    std::function<OpenShards(format::StepId)> committed;  // Null: some shard is nowhere.
  };
  UnsavedWatch(const JobFacts& facts, JobLife& life, const Ranks& ranks, Steps steps)
      : facts_(facts), life_(life), ranks_(ranks), steps_(std::move(steps)) {}

  void update(bool is_coordinator);

 private:
  using Names = std::map<std::string, std::string, std::less<>>;  // With what each is tied to.
  using Restored = std::pair<Step, Names>;
  bool is_wanted(const format::Start& start) const;
  asio::awaitable<void> read_restored(OpenShards open, Step step);
  asio::awaitable<void> compare(OpenShards open, Restored restored);
  Task<Names> names_in(std::shared_ptr<gather::ShardSource> shards) const;

  const JobFacts& facts_;
  JobLife& life_;
  const Ranks& ranks_;
  const Steps steps_;
  std::uint64_t begun_for_ = 0;       // The Start whose step was looked at.
  std::optional<Restored> restored_;  // Until it is compared.
};

}  // namespace ckpt::node
