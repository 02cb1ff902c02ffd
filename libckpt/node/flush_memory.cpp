#include "node/flush_memory.hpp"

#include <algorithm>

#include "base/assert.hpp"
#include "base/log.hpp"

namespace ckpt::node {

void FlushMemory::set_enabled(bool is_enabled) {
  is_enabled_ = is_enabled;
  if (!is_enabled) stored_.clear();
}

std::shared_ptr<storage::ChunkSharing> FlushMemory::begin(const storage::Site& site,
                                                          format::ShardId id,
                                                          const std::set<format::Damage>& damaged) {
  if (!is_enabled_ || is_refused_) return nullptr;
  // A step may have its damage from the one before.
  const auto is_of_rank = [&](const format::Damage& one) { return one.id.rank == id.rank; };
  if (std::ranges::any_of(damaged, is_of_rank)) stored_.erase(id.rank);
  damaged_meanwhile_.erase(id.rank);
  const auto found = stored_.find(id.rank);
  const auto earlier = found == stored_.end() ? nullptr : found->second;
  CKPT_ASSERT(earlier == nullptr || earlier->id.rank == id.rank);
  return storage::ChunkSharing::in(site, earlier);
}

void FlushMemory::keep(format::ShardId id, const storage::ChunkSharing& sharing) {
  if (sharing.refusal()) log_refusal(id, *sharing.refusal());
  stored_.erase(id.rank);
  if (!is_enabled_ || is_refused_ || damaged_meanwhile_.contains(id.rank)) return;
  if (sharing.stored()) stored_.emplace(id.rank, sharing.stored());
}

void FlushMemory::forget(std::uint32_t rank) {
  stored_.erase(rank);
  damaged_meanwhile_.insert(rank);
}

void FlushMemory::log_refusal(format::ShardId id, const Error& refusal) {
  const bool is_final = refusal.code() == Errc::unsupported;
  bool& has_told = is_final ? is_refused_ : has_told_gone_;
  if (is_final) stored_.clear();
  if (std::exchange(has_told, true)) return;
  log_info("job={} step={} rank={} {}: {}", job_, number(id.at.step), id.rank,
           is_final ? "storage shares no unchanged Chunks, and gets all of them from now on"
                    : "unchanged Chunks are written again",
           refusal.message());
}

}  // namespace ckpt::node
