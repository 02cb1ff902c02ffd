// PutAside: copies that failed verification while a restore is under way, for their good Chunks.
//
// They may have the last good bytes of some Chunk. A restore reads them after everything else, and
// verifies each Chunk. No report names them and no vote counts them, so that nobody relies on them.
// They give way to Slots of ranks that need their memory, and go with the end of the Start.
//
// Threads: the engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "arena/slot.hpp"

namespace ckpt::node {

class PutAside {
 public:
  using SharedLease = std::shared_ptr<const arena::Lease>;

  // Copies are kept from now on; false: all go, and no other one is kept. True: some went.
  bool set_open(bool is_open);
  bool is_open() const { return is_open_; }
  void add(arena::Lease damaged);
  std::vector<SharedLease> find(const format::ShardId& id, const Digest& digest) const;
  // Those of one rank, or all. A reader keeps its own hold of one. True: some went.
  bool let_go(std::optional<std::uint32_t> rank = std::nullopt);

 private:
  std::vector<SharedLease> copies_;
  bool is_open_ = false;
};

}  // namespace ckpt::node
