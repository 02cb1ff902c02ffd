// FlushMemory: what this node stored last of each rank, so that the next save can share with it
// what has not changed (`skip_unchanged`).
//
// It lives as long as the job in this daemon: a daemon that was started again knows nothing, and
// writes everything. Where storage has refused to share, nothing is remembered any more.
//
// Threads: the engine's. Lifetime: the job's name outlives it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "format/agreement.hpp"
#include "storage/chunk_sharing.hpp"
#include "storage/site.hpp"

namespace ckpt::node {

class FlushMemory {
 public:
  explicit FlushMemory(const std::string& job) : job_(job) {}

  void set_enabled(bool is_enabled);

  // For one write of a shard without compression. Null: all of it is written, and forgotten. With
  // damage of what was stored, nothing is shared.
  std::shared_ptr<storage::ChunkSharing> begin(const storage::Site& site, format::ShardId id,
                                               const std::set<format::Damage>& damaged);
  // The write ended, and has put the files where they belong.
  void keep(format::ShardId id, const storage::ChunkSharing& sharing);
  // Stored files of the rank are damaged. A write that is under way may share the damage.
  void forget(std::uint32_t rank);

 private:
  using Stored = std::shared_ptr<const storage::StoredShard>;
  void log_refusal(format::ShardId id, const Error& refusal);

  const std::string& job_;
  std::map<std::uint32_t, Stored> stored_;     // By rank, the last one that was written.
  std::set<std::uint32_t> damaged_meanwhile_;  // Ranks, since their last write began.
  bool is_enabled_ = false;
  bool is_refused_ = false;     // Storage cannot share.
  bool has_told_gone_ = false;  // A base was not there any more.
};

}  // namespace ckpt::node
