#include "node/copy_base.hpp"

#include "base/assert.hpp"

namespace ckpt::node {

using arena::Slot;

bool is_base(const format::ShardRecord& earlier, const format::ShardRecord& record) {
  return earlier.job == record.job && earlier.run == record.run &&
         earlier.id.rank == record.id.rank && earlier.id.at.timeline == record.id.at.timeline &&
         earlier.id.at < record.id.at && earlier.model == record.model;
}

replicate::SealedShard source_of(std::shared_ptr<Slot> slot) {
  return source_of(std::make_shared<const arena::Lease>(std::move(slot)));
}

replicate::SealedShard source_of(std::shared_ptr<const arena::Lease> lease) {
  CKPT_ASSERT(lease != nullptr);
  replicate::SealedShard source;
  source.record = lease->shared_record();
  source.spans = lease->file_spans({0, source.record->bytes});
  source.lease = std::move(lease);
  return source;
}

const arena::Lease& lease_of(const replicate::SealedShard& source) {
  CKPT_ASSERT(source.lease != nullptr);
  return *static_cast<const arena::Lease*>(source.lease.get());
}

std::optional<replicate::Base> base_for(const SlotTable& slots, const format::ShardRecord& record,
                                        const std::set<Copy>& given) {
  std::shared_ptr<Slot> newest;
  slots.for_each_sealed([&](Slot& earlier, bool) {
    if (!is_base(*earlier.record(), record)) return;
    if (!given.contains({earlier.id(), earlier.digest()})) return;
    if (!newest || newest->id() < earlier.id()) newest = earlier.shared_from_this();
  });
  if (!newest) return std::nullopt;
  replicate::Base base;
  base.digest = newest->digest();
  base.source = source_of(std::move(newest));
  return base;
}

std::optional<replicate::SealedShard> base_of(const SlotTable& slots,
                                              const replicate::ShardOffer& offer) {
  if (!offer.base) return std::nullopt;
  std::shared_ptr<Slot> slot = slots.find(offer.base->shard, offer.base->digest);
  if (!slot || !is_base(*slot->record(), *offer.record)) return std::nullopt;
  return source_of(std::move(slot));
}

Task<replicate::Delivery> deliver(wire::Connection& connection, Clock& clock,
                                  replicate::SealedShard source,
                                  std::optional<replicate::Base> base,
                                  replicate::TransferOptions options, CopiesSent& sent) {
  options.on_chunk = [&sent, record = source.record](std::size_t chunk) {
    sent.bytes += record->chunk(chunk).bytes;
  };
  options.on_same = [&sent, record = source.record](std::size_t chunk) {
    sent.bytes_unchanged += record->chunk(chunk).bytes;
  };
  if (!base) {
    auto delivered =
        co_await replicate::send_shard(connection, clock, std::move(source), std::move(options));
    co_return delivered;
  }
  replicate::Base held = std::move(*base);
  base.reset();
  auto delivered = co_await replicate::send_changes(connection, clock, std::move(source),
                                                    std::move(held), std::move(options));
  co_return delivered;
}

}  // namespace ckpt::node
