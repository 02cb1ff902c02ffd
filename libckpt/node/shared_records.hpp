// SharedRecords: the records of one step's shards that come from other nodes, for all ranks of this
// node that restore from them.
//
// Ranks restore at the same time, and each looks at all shards. A record that one of them fetches
// is given to those that ask for it meanwhile, and stays if it fits. Many come from one peer: the
// connections to it are used again, since making one takes longer than a record.
//
// Threads: the engine's. Lifetime: shared by the restores that use it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/signal.hpp"
#include "node/kept_records.hpp"
#include "wire/connection.hpp"

namespace ckpt::node {

class SharedRecords {
 public:
  using Record = std::shared_ptr<const format::ShardRecord>;
  using Fetch = std::function<Task<Record>(std::uint32_t rank)>;

  using Connection = std::shared_ptr<wire::Connection>;
  using Dial = std::function<Task<Connection>()>;
  using Ask = std::function<Task<Record>(Connection)>;
  // To one peer: some records are decoded while others come.
  static constexpr std::size_t lines_max = 4;

  explicit SharedRecords(Clock& clock) : clock_(clock) {}
  ~SharedRecords();

  // Calls `fetch` if the record is not here and nobody fetches it. Errors: those of `fetch`, also
  // of another reader's.
  Task<Record> find_or_fetch(std::uint32_t rank, Fetch fetch);
  // Asks over a connection to this peer that nobody uses; `dial` makes it. One that was used before
  // may be closed by now: then a new one is made, once. Where others use all of them for too long,
  // it gets one more. Errors: those of `dial` and `ask`.
  Task<Record> ask_peer(std::string peer, Dial dial, Ask ask);

 private:
  struct Lines {
    explicit Lines(Clock& clock) : changed(clock) {}
    void close_idle();
    std::vector<Connection> idle;
    std::size_t in_use = 0;
    Signal changed;
  };
  struct Coming {
    explicit Coming(Clock& clock) : over(clock) {}
    std::optional<Result<Record>> result;
    Signal over;
  };
  static Task<Record> ask_over(std::shared_ptr<Lines> lines, Dial dial, Ask ask);

  Clock& clock_;
  KeptRecords kept_;
  std::map<std::uint32_t, std::shared_ptr<Coming>> coming_;  // By rank.
  std::map<std::string, std::shared_ptr<Lines>> lines_;      // By peer.
};

}  // namespace ckpt::node
