// SharedRecords: the records of one step's shards that come from other nodes, for all ranks of this
// node that restore from them.
//
// Ranks restore at the same time, and each looks at all shards. A record that one of them fetches
// is given to those that ask for it meanwhile, and stays if it fits.
//
// Threads: the engine's. Lifetime: shared by the restores that use it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "base/signal.hpp"
#include "node/kept_records.hpp"

namespace ckpt::node {

class SharedRecords {
 public:
  using Record = std::shared_ptr<const format::ShardRecord>;
  using Fetch = std::function<Task<Record>(std::uint32_t rank)>;

  explicit SharedRecords(Clock& clock) : clock_(clock) {}

  // Calls `fetch` if the record is not here and nobody fetches it. Errors: those of `fetch`, also
  // of another reader's.
  Task<Record> find_or_fetch(std::uint32_t rank, Fetch fetch);

 private:
  struct Coming {
    explicit Coming(Clock& clock) : over(clock) {}
    std::optional<Result<Record>> result;
    Signal over;
  };

  Clock& clock_;
  KeptRecords kept_;
  std::map<std::uint32_t, std::shared_ptr<Coming>> coming_;  // By rank.
};

}  // namespace ckpt::node
