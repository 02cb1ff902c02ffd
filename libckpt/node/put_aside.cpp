#include "node/put_aside.hpp"

#include "base/assert.hpp"

namespace ckpt::node {

bool PutAside::set_open(bool is_open) {
  is_open_ = is_open;
  return !is_open && let_go();
}

void PutAside::add(arena::Lease damaged) {
  CKPT_ASSERT(is_open_);
  CKPT_ASSERT(damaged.slot().state() == arena::Slot::State::quarantined);
  copies_.push_back(std::make_shared<const arena::Lease>(std::move(damaged)));
}

std::vector<PutAside::SharedLease> PutAside::find(const format::ShardId& id,
                                                  const Digest& digest) const {
  std::vector<SharedLease> found;
  for (const SharedLease& copy : copies_)
    if (copy->record().id == id && copy->slot().digest() == digest) found.push_back(copy);
  return found;
}

bool PutAside::let_go(std::optional<std::uint32_t> rank) {
  return std::erase_if(copies_, [rank](const SharedLease& copy) {
           return !rank || copy->record().id.rank == *rank;
         }) > 0;
}

}  // namespace ckpt::node
