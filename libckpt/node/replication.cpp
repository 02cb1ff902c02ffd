#include "node/replication.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "agree/timelines.hpp"
#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "replicate/joint_fetch.hpp"
#include "replicate/placement.hpp"

namespace ckpt::node {

using arena::Slot;

namespace {

constexpr Duration retry_after = std::chrono::milliseconds(50);
constexpr Duration retry_after_max = std::chrono::seconds(2);
// The network may give a single connection a part of the bandwidth only. Shards are not divided, so
// a second lane serves nodes with several ranks.
constexpr std::uint32_t lanes_per_target = 2;

}  // namespace

Replication::Replication(const JobFacts& facts, JobLife& life, SlotTable& slots, Peers& peers,
                         GivingWay& giving_way)
    : facts_(facts),
      life_(life),
      slots_(slots),
      peers_(peers),
      giving_way_(giving_way),
      changed_(facts.clock()) {}

void Replication::stop() {
  is_stopping_ = true;
  changed_.close();
  for (const auto& connection : served_) connection->close();
  for (const auto& [lane, connection] : feed_connections_) {
    if (connection) connection->close();
  }
}

void Replication::wake() {
  if (is_stopping_) return;
  choose_targets();
  // A restore may bring back shards that targets have freed since; a shard that a target still has
  // is not sent again when it is offered.
  const std::uint64_t timeline = agree::newest_timeline(facts_.history);
  if (timeline != given_in_) given_.clear();
  given_in_ = timeline;
  for (const std::string& target : targets_) {
    for (std::uint32_t number = 0; number < lanes_per_target; ++number) {
      const Lane lane{target, number};
      if (fed_.insert(lane).second) facts_.context.spawn(feed(lane));
    }
  }
  changed_.notify_all();
}

void Replication::choose_targets() {
  const agree::JobShape& shape = facts_.shape;
  if (facts_.members == placed_for_ && facts_.node == placed_as_) return;
  placed_for_ = facts_.members;
  placed_as_ = facts_.node;
  targets_.clear();
  partners_.clear();
  // A name may stand for another host now. The host's boot says which steps it was given.
  for (auto& [lane, connection] : feed_connections_) {
    if (connection) connection->close();
    connection.reset();
  }
  if (facts_.secret.empty()) return;
  const Digest seed = digest_of(std::as_bytes(std::span(shape.job)));
  const auto placement = replicate::place_replicas(shape.nodes, shape.replicas, seed.low);
  if (!placement.shortfall.empty() && shape.nodes.size() > 1) {
    log_warning("job={} {}", shape.job, placement.shortfall);
  }
  for (std::size_t index = 0; index < shape.nodes.size(); ++index) {
    const std::string& name = shape.nodes[index].name;
    for (const auto target : placement.targets[index]) {
      const std::string& to = shape.nodes[target].name;
      if (name == facts_.node) targets_.push_back(to);
      if (name == facts_.node || to == facts_.node)
        partners_.insert(name == facts_.node ? to : name);
    }
  }
}

// A target that was started again has lost what it had.
void Replication::note_boot(const std::string& target, std::uint64_t boot) {
  if (boot == 0 || target_boots_[target] == boot) return;
  given_[target].clear();
  target_boots_[target] = boot;
}

std::shared_ptr<Slot> Replication::next_for(const std::string& target) {
  std::shared_ptr<Slot> next;
  const std::set<Copy>& given = given_[target];
  slots_.for_each_sealed([&](Slot& slot, bool is_own) {
    const format::StepId at = slot.id().at;
    const Copy copy{slot.id(), slot.digest()};
    if (facts_.is_useless(at) || given.contains(copy) || is_under_way(target, copy)) return;
    // If another number of ranks saved it, only the restored step is needed. Each node sends the
    // shards that it has: the nodes that captured them may be gone.
    const bool is_of_others = slot.record()->world_size != facts_.shape.world_size;
    if (is_of_others ? !facts_.is_newest_committed(at) : !is_own) return;
    // Targets have room for one step that is not committed, of each rank. With a newer one at some
    // and an older one at others, neither would ever be.
    if (slots_.has_older_unsealed(slot.id())) return;
    // The timeline that is trained on comes first: leftovers of another, for which the target may
    // never have room, must not hold it up.
    const bool is_next =
        !next || (at.timeline != next->id().at.timeline ? at.timeline > next->id().at.timeline
                                                        : slot.id() < next->id());
    if (is_next) next = slot.shared_from_this();
  });
  // A newer step must not take bandwidth from one that is under way: that is committed first.
  const bool waits = next && std::ranges::any_of(under_way_, [&](const auto& sent) {
                       return sent.first.target == target && sent.second.first.at != next->id().at;
                     });
  return waits ? nullptr : next;
}

bool Replication::is_under_way(const std::string& target, const Copy& copy) const {
  return std::ranges::any_of(under_way_, [&](const auto& sent) {
    return sent.first.target == target && sent.second == copy;
  });
}

bool Replication::is_late(const std::string& target, const OwedCopies::Owed& owed, Time now) const {
  const auto& [shard, digest] = owed.copy;
  // A target that is lost is reported as such.
  if (now - owed.since < copy_slow_after || !peers_.is_live(target)) return false;
  if (facts_.is_useless(shard.at) || !slots_.find(shard, digest)) return false;
  // A large one that gets on is late only when the next one waits for it.
  bool is_late = owed.has_failed(now);
  slots_.for_each_sealed([&](Slot& slot, bool is_own) {
    const format::StepId at = slot.id().at;
    is_late = is_late || (is_own && at.timeline == shard.at.timeline && shard.at < at);
  });
  return is_late;
}

std::string Replication::trouble(Time now) const {
  return owed_.trouble(now, [this, now](const std::string& target, const OwedCopies::Owed& owed) {
    return is_late(target, owed, now);
  });
}

bool Replication::is_target(const std::string& node) const {
  return std::ranges::find(targets_, node) != targets_.end();
}

asio::awaitable<void> Replication::feed(Lane lane) {
  const std::shared_ptr<void> held = life_.hold();
  Clock& clock = facts_.clock();
  Duration backoff = retry_after;
  LogLimit complaint(30.0);
  while (!is_stopping_ && is_target(lane.target)) {
    note_boot(lane.target, peers_.boot_of(lane.target));
    std::shared_ptr<Slot> slot = peers_.is_live(lane.target) ? next_for(lane.target) : nullptr;
    if (!slot) {
      owed_.paid(lane);
      auto woken = co_await changed_.wait_until(clock.after(std::chrono::seconds(1)));
      if (!woken) break;
      continue;
    }
    const Copy copy{slot->id(), slot->digest()};
    owed_.owe(lane, copy, clock.now());
    under_way_[lane] = copy;
    auto sent = co_await send(lane, std::move(slot));
    under_way_.erase(lane);
    if (is_stopping_) break;
    if (sent) {
      owed_.paid(lane);
      backoff = retry_after;
      life_.touch();
      continue;
    }
    owed_.failed(lane, sent.error(), clock.now());
    if (complaint.may_speak()) {
      log_info("job={} target={} copy not taken, tried again: {}", facts_.shape.job, lane.target,
               sent.error().message());
    }
    auto slept = co_await sleep_until(clock, clock.after(backoff));
    if (!slept) break;
    backoff = std::min(backoff * 2, retry_after_max);
  }
  if (const auto& connection = feed_connections_[lane]) connection->close();
  feed_connections_.erase(lane);
  owed_.paid(lane);
  fed_.erase(lane);
}

Task<void> Replication::send(Lane lane, std::shared_ptr<Slot> slot) {
  const replicate::SealedShard source = source_of(slot);
  const Copy copy{slot->id(), slot->digest()};
  slot.reset();
  std::shared_ptr<wire::Connection> connection = feed_connections_[lane];
  if (!connection) {
    std::uint64_t boot = 0;
    auto dialed = co_await peers_.dial(lane.target, wire::Purpose::data, &boot);
    if (!dialed) co_return fail(std::move(dialed).error());
    connection = std::move(*dialed);
    feed_connections_[lane] = connection;
    note_boot(lane.target, boot);
  }
  CKPT_POINT("repl.begin");
  // Only now: its Lease must not keep a Slot from the trainer while we wait for a peer's answer.
  std::optional<replicate::Base> base;
  if (skips_unchanged_) base = base_for(slots_, *source.record, given_[lane.target]);
  replicate::TransferOptions options = transfer_options();
  options.throttle = giving_way_.throttle(BackgroundWork::copies);
  WorkMeter::Pass under_way = giving_way_.begin(BackgroundWork::copies);
  auto sent = co_await deliver(*connection, facts_.clock(), source, std::move(base),
                               std::move(options), copies_sent_);
  under_way.end(facts_.clock().now());
  CKPT_POINT("repl.end");
  const bool is_usable =
      sent ? *sent == replicate::Delivery::applied : sent.error().code() == Errc::exhausted;
  if (!is_usable) {
    connection->close();
    feed_connections_.erase(lane);
  }
  if (sent && *sent == replicate::Delivery::declined) {
    // One of us is behind: a step that both know to be of no use is not offered at all.
    co_return fail(Errc::unavailable, lane.target + " has no use for it, as far as it knows");
  }
  if (sent) {
    std::set<Copy>& given = given_[lane.target];
    given.insert(copy);
    // Only what is still held can be asked for again.
    std::erase_if(given, [&](const Copy& old) {
      return facts_.committed && old.first.at < *facts_.committed;
    });
    co_return Status{};
  }
  if (sent.error().code() == Errc::corruption) {
    // Noise on the way must not cost us a good copy: it goes only if it is ours that is damaged.
    auto damage = co_await replicate::find_damage(facts_.context.seams.compute, source);
    if (damage && *damage) damaged(facts_.shape.job, copy.first, copy.second, **damage);
  }
  co_return fail(std::move(sent).error());
}

replicate::TransferOptions Replication::transfer_options() const {
  replicate::TransferOptions options;
  options.timeline = agree::newest_timeline(facts_.history);
  options.compute = facts_.context.seams.compute;
  return options;
}

// --- what peers ask of us ---

void Replication::admit(std::shared_ptr<wire::Connection> connection, wire::PeerIdentity identity) {
  if (is_stopping_) {
    connection->close();
    return;
  }
  facts_.context.spawn(serve(std::move(connection), std::move(identity)));
}

asio::awaitable<void> Replication::serve(std::shared_ptr<wire::Connection> connection,
                                         wire::PeerIdentity identity) {
  const std::shared_ptr<void> held = life_.hold();
  served_.insert(connection);
  replicate::ServiceOptions options;
  options.compute = facts_.context.seams.compute;
  auto served = co_await replicate::serve_peer(connection, facts_.clock(), std::move(identity),
                                               *this, *this, std::move(options));
  if (!served) log_info("job={} {}", facts_.shape.job, served.error().message());
  served_.erase(connection);
}

Result<replicate::ReplicaTarget> Replication::reserve(const replicate::ShardOffer& offer) {
  const format::ShardRecord& record = *offer.record;
  const std::string what =
      fmt::format("copy of step {} rank {}", number(record.id.at.step), record.id.rank);
  if (record.job != facts_.shape.job || record.run != facts_.shape.run) {
    return fail(Errc::not_found, what + ": another run");
  }
  // Of another number of ranks only the step that was restored, until a newer one is committed.
  const bool is_wanted =
      record.world_size == facts_.shape.world_size || facts_.is_newest_committed(record.id.at);
  if (!is_wanted || record.id.rank >= record.world_size) {
    return fail(Errc::cancelled, what + ": another world size");
  }
  if (facts_.is_fenced(record.id.at)) {
    return fail(Errc::cancelled, what + ": fenced: its timeline was abandoned");
  }
  if (facts_.committed && record.id.at < *facts_.committed) {
    return fail(Errc::cancelled, what + ": a newer step is committed");
  }
  replicate::ReplicaTarget target;
  target.ticket = next_ticket_++;
  target.hold = giving_way_.begin_receiving();
  if (slots_.find(record.id, offer.digest)) {
    target.applied = replicate::ChunkSet(record.chunk_crcs.size());
    for (std::size_t i = 0; i < record.chunk_crcs.size(); ++i) target.applied.insert(i);
    receiving_[target.ticket] = {nullptr, offer.record, offer.digest, target.applied, target.hold};
    return target;
  }
  for (auto entry = receiving_.begin(); entry != receiving_.end(); ++entry) {
    Receiving& earlier = entry->second;
    if (!earlier.slot || earlier.record->id != record.id) continue;
    if (!earlier.hold.expired()) return fail(Errc::unavailable, what + ": is being received");
    if (earlier.digest != offer.digest) continue;
    target.bytes = earlier.slot->memory().bytes();
    target.applied = earlier.applied;
    Receiving resumed = std::move(earlier);
    resumed.hold = target.hold;
    receiving_.erase(entry);
    receiving_[target.ticket] = std::move(resumed);
    target.base = base_of(slots_, offer);
    return target;
  }
  auto slot = slots_.take_replica(record, [this, held = life_.hold()] { life_.touch(); });
  if (!slot && slot.error().code() == Errc::exhausted && make_room(record.id.rank))
    slot = slots_.take_replica(record, [this, held = life_.hold()] { life_.touch(); });
  if (!slot) return fail(std::move(slot).error());
  target.base = base_of(slots_, offer);  // Before anything else could ask for its Slot.
  (*slot)->begin_fill(record.id);
  target.bytes = (*slot)->memory().bytes();
  target.applied = replicate::ChunkSet(record.chunk_crcs.size());
  receiving_[target.ticket] = {*slot, offer.record, offer.digest, target.applied, target.hold};
  return target;
}

bool Replication::make_room(std::uint32_t rank) {
  for (auto entry = receiving_.begin(); entry != receiving_.end(); ++entry) {
    const Receiving& receiving = entry->second;
    if (!receiving.slot || receiving.record->id.rank != rank || !receiving.hold.expired()) continue;
    receiving.slot->abandon();
    receiving_.erase(entry);
    return true;
  }
  return false;
}

void Replication::base_damaged(const replicate::CopyName& base, std::size_t chunk) {
  damaged(facts_.shape.job, base.shard, base.digest, chunk);
}

void Replication::chunk_applied(std::uint64_t ticket, std::size_t index) {
  const auto entry = receiving_.find(ticket);
  if (entry != receiving_.end()) entry->second.applied.insert(index);
}

Status Replication::sealed(std::uint64_t ticket) {
  const auto entry = receiving_.find(ticket);
  if (entry == receiving_.end()) return fail(Errc::cancelled, "seal a copy: its memory was freed");
  Receiving receiving = std::move(entry->second);
  receiving_.erase(entry);
  if (!receiving.slot) return {};  // We had it.
  CKPT_POINT("repl.ack.before");
  if (receiving.is_freed || facts_.is_fenced(receiving.record->id.at)) {
    receiving.slot->abandon();
    return fail(Errc::cancelled, "seal a copy: fenced, or its memory was freed");
  }
  receiving.slot->filled();
  receiving.slot->seal(std::move(receiving.record));
  CKPT_POINT("repl.ack.after");
  life_.touch();
  return {};
}

void Replication::abandoned(std::uint64_t ticket) {
  // The applied Chunks stay for the next offer of the same shard, until their Slot is needed.
  const auto entry = receiving_.find(ticket);
  if (entry == receiving_.end()) return;
  if (entry->second.slot && !entry->second.is_freed) return;
  if (entry->second.slot) entry->second.slot->abandon();
  receiving_.erase(entry);
}

void Replication::memory_freed() {
  for (auto entry = receiving_.begin(); entry != receiving_.end();) {
    Receiving& receiving = entry->second;
    receiving.is_freed = true;
    // While its connection still writes, the Slot stays; abandoned() or sealed() will tell.
    const bool is_over = receiving.slot && receiving.hold.expired();
    if (is_over) receiving.slot->abandon();
    entry = is_over ? receiving_.erase(entry) : std::next(entry);
  }
}

Result<replicate::SealedShard> Replication::lease(const std::string& job,
                                                  const format::ShardId& shard,
                                                  const Digest& digest) {
  std::shared_ptr<Slot> slot = slots_.find(shard, digest);
  if (job != facts_.shape.job || !slot) {
    return fail(Errc::not_found, fmt::format("step {} rank {}: no copy on node {}",
                                             number(shard.at.step), shard.rank, facts_.node));
  }
  return source_of(std::move(slot));
}

void Replication::damaged(const std::string&, const format::ShardId& shard, const Digest& digest,
                          std::size_t chunk) {
  log_warning("job={} step={} rank={} chunk={} of our copy is damaged", facts_.shape.job,
              number(shard.at.step), shard.rank, chunk);
  slots_.quarantine(shard, digest);
  life_.touch();
}

// --- what we ask of peers ---

// Connections of their own: restores are rare, and several ranks may fetch at once.
Task<std::shared_ptr<const format::ShardRecord>> Replication::fetch_record(std::string peer,
                                                                           format::ShardId id,
                                                                           Digest digest) {
  CKPT_CO_TRY(auto connection, co_await peers_.dial(std::move(peer), wire::Purpose::data, nullptr));
  auto record =
      co_await replicate::fetch_record(*connection, facts_.clock(), id, digest, transfer_options());
  connection->close();
  co_return record;
}

Replication::OnChunk Replication::counting(std::shared_ptr<const format::ShardRecord> record,
                                           BytesVerified bytes) {
  return [record = std::move(record), bytes = std::move(bytes)](std::size_t index) {
    bytes(record->chunk(index).bytes);
  };
}

Task<void> Replication::fetch(std::vector<std::string> peers,
                              std::shared_ptr<const format::ShardRecord> record,
                              replicate::Destination target, replicate::ChunkSet have,
                              OnChunk on_chunk) {
  replicate::TransferOptions options = transfer_options();
  options.on_chunk = std::move(on_chunk);
  replicate::DialHolder dial = [this, held = life_.hold()](std::string peer) {
    return peers_.dial(std::move(peer), wire::Purpose::data, nullptr);
  };
  auto fetched =
      co_await replicate::fetch_jointly(std::move(peers), std::move(dial), facts_.clock(), record,
                                        std::move(target), std::move(have), std::move(options));
  co_return fetched;
}

}  // namespace ckpt::node
