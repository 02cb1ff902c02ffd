// LentStep: a step in the memory of nodes, as a tool of this machine reads it: `ckpt export
// memory:gpt2`.
//
// It keeps the copies in our own Slots as long as training has enough Slots without them. Then, and
// with the copies of other nodes from the beginning, it lasts until a newer step is committed: a
// tool never costs training a save.
//
// Threads: the engine's. Lifetime: shared; it holds the job, not its memory.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "node/held_shards.hpp"
#include "node/job_life.hpp"

namespace ckpt::node {

// The memory that one answer takes here.
inline constexpr std::size_t lent_chunks_max = 8;

class LentStep : public std::enable_shared_from_this<LentStep> {
 public:
  struct Parts {
    const JobFacts& facts;
    JobLife& life;
    SlotTable& slots;
    Replication& replication;
    JobStorage& storage;
  };
  // The node's knowledge of the job. `coordinator`: the node that knows all copies; ours, or
  // another.
  struct Known {
    const agree::ClusterView& view;
    std::string coordinator;
  };
  // The newest step of which every rank's shard is in memory, or that one. Errors: not_found (the
  // job has none, or not this one), unavailable (some shard of it is not in any memory that this
  // node knows of: names the ranks, and the node to ask).
  static Result<std::shared_ptr<LentStep>> lend(Parts parts, Known known,
                                                std::optional<Step> wanted);

  wire::control::HeldStep description() const;
  // Errors: invalid_argument (no such rank), and those of HeldShards; unavailable once training has
  // gone on.
  Task<std::shared_ptr<const format::ShardRecord>> record(std::uint32_t rank);
  // At most `lent_chunks_max` of them, verified, in their order. Errors: as record().
  Task<std::vector<std::vector<std::byte>>> read(std::uint32_t rank,
                                                 std::vector<std::size_t> chunks);

  // Lets go of Slots that training needs. True: of some.
  bool give_way();
  void memory_freed();  // The job's: lets go of all.

 private:
  using SharedLease = std::shared_ptr<const arena::Lease>;

  LentStep(Parts parts, format::Start start);
  Error explained(Error error) const;

  const JobFacts& facts_;
  JobLife& life_;
  SlotTable& slots_;
  const std::shared_ptr<void> job_;
  const format::Start start_;
  HeldShards shards_;                            // Serves what no Lease has.
  std::map<std::uint32_t, SharedLease> leases_;  // By rank. A read keeps its own hold of one.
  bool is_freed_ = false;
};

}  // namespace ckpt::node
