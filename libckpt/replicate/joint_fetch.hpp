// JointFetch: fills one shard from all its holders at once, over several connections.
//
// Each connection takes some Chunks that no other one has taken, and asks its holder for these
// alone. When its holder fails, the Chunks that have not come are taken by the others. In the
// end it asks the holders of damaged copies for each missing Chunk alone: copies that are damaged
// in different Chunks make one good shard.
//
// Threads: the connections'.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "replicate/shard_fetch.hpp"

namespace ckpt::replicate {

// One connection waits for a lost segment, or for its holder, while the other one is read.
inline constexpr std::size_t connections_per_holder = 2;
inline constexpr std::size_t fetch_connections_max = 4;

// The failure of each holder.
class HolderFailures {
 public:
  // The first one of each, but for not_found, which a holder also answers once it has found its
  // copy damaged over another connection.
  void add(const std::string& holder, Error error);
  bool contains(const std::string& holder) const { return all_.contains(holder); }
  bool empty() const { return all_.empty(); }
  std::vector<std::string> damaged() const;  // Those that failed with corruption.
  // Not_found if none has the shard, else the code of one that failed otherwise.
  Error error() const;

 private:
  std::map<std::string, Error> all_;
};

// Makes a connection to a holder, authenticated. Keeps alive what it needs.
using DialHolder = std::function<Task<std::shared_ptr<wire::Connection>>(std::string holder)>;

// As fetch_shard(), from all of `holders`, what is not in `have`. One that fails costs time only,
// as long as another one has the shard; when this returns, none writes to `target` any more.
// Errors: those of HolderFailures.
Task<void> fetch_jointly(std::vector<std::string> holders, DialHolder dial, Clock& clock,
                         std::shared_ptr<const format::ShardRecord> record, Destination target,
                         ChunkSet have, TransferOptions options);

}  // namespace ckpt::replicate
