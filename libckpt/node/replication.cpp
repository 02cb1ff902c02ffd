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

constexpr Duration send_again_after = std::chrono::milliseconds(50);
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
      incoming_(facts, life, slots, giving_way),
      changed_(facts.clock()) {}

void Replication::stop() {
  is_stopping_ = true;
  changed_.close();
  for (const auto& connection : served_) connection->close();
  close_lines([](const auto&) { return true; });
}

// The lane that sends over one sees it fail, and dials anew.
template <class Claim>
void Replication::close_lines(Claim claim) {
  std::erase_if(feed_lines_, [&](const auto& entry) {
    if (!claim(entry)) return false;
    entry.second.connection->close();
    return true;
  });
}

void Replication::wake() {
  if (is_stopping_) return;
  choose_targets();
  hear_boots();
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
  close_lines([](const auto&) { return true; });
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

// The network may not say that the other end of a lane's connection is dead. Each lane would stand
// still until its deadline, one after the other where there is one copy to send.
void Replication::hear_boots() {
  for (const std::string& target : targets_) {
    const std::uint64_t boot = peers_.boot_of(target);
    if (boot == 0 || std::exchange(heard_boots_[target], boot) == boot) continue;
    note_boot(target, boot);
    close_lines([&](const auto& entry) {
      return entry.first.target == target && entry.second.boot != boot;
    });
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
  Duration backoff = send_again_after;
  LogLimit complaint(30.0);
  while (!is_stopping_ && is_target(lane.target)) {
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
      backoff = send_again_after;
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
  close_lines([&](const auto& entry) { return entry.first == lane; });
  owed_.paid(lane);
  fed_.erase(lane);
}

Task<void> Replication::send(Lane lane, std::shared_ptr<Slot> slot) {
  const replicate::SealedShard source = source_of(slot);
  const Copy copy{slot->id(), slot->digest()};
  slot.reset();
  const auto line = feed_lines_.find(lane);
  auto connection = line == feed_lines_.end() ? nullptr : line->second.connection;
  if (!connection) {
    std::uint64_t boot = 0;
    auto dialed = co_await peers_.dial(lane.target, wire::Purpose::data, &boot);
    if (!dialed) co_return fail(std::move(dialed).error());
    connection = std::move(*dialed);
    feed_lines_[lane] = {connection, boot};
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
    feed_lines_.erase(lane);
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
    if (damage && *damage) damaged(facts_.shape.job, source, **damage);
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
                                               incoming_, *this, std::move(options));
  if (!served) log_info("job={} {}", facts_.shape.job, served.error().message());
  served_.erase(connection);
}

Result<replicate::SealedShard> Replication::lease(const std::string& job,
                                                  const format::ShardId& shard,
                                                  const Digest& digest) {
  const bool is_ours = job == facts_.shape.job;
  if (std::shared_ptr<Slot> slot = slots_.find(shard, digest); is_ours && slot)
    return source_of(std::move(slot));
  // The asker verifies each Chunk, and may find some of them nowhere else.
  const auto damaged = slots_.find_damaged(shard, digest);
  if (is_ours && !damaged.empty()) return source_of(damaged.front());
  return fail(Errc::not_found, fmt::format("step {} rank {}: no copy on node {}",
                                           number(shard.at.step), shard.rank, facts_.node));
}

void Replication::damaged(const std::string&, const replicate::SealedShard& copy,
                          std::size_t chunk) {
  const format::ShardId& shard = copy.record->id;
  log_warning("job={} step={} rank={} chunk={} of our copy is damaged", facts_.shape.job,
              number(shard.at.step), shard.rank, chunk);
  slots_.quarantine(lease_of(copy));
  life_.touch();
}

// --- what we ask of peers ---

// Connections of their own: restores are rare, and several ranks may fetch at once.
Task<std::shared_ptr<wire::Connection>> Replication::dial_for_records(std::string peer) {
  auto connection = co_await peers_.dial(std::move(peer), wire::Purpose::data, nullptr);
  co_return connection;
}

Task<std::shared_ptr<const format::ShardRecord>> Replication::fetch_record(
    std::shared_ptr<wire::Connection> connection, format::ShardId id, Digest digest) {
  auto record =
      co_await replicate::fetch_record(*connection, facts_.clock(), id, digest, transfer_options());
  co_return record;
}

Task<std::shared_ptr<const format::ShardRecord>> Replication::fetch_record(std::string peer,
                                                                           format::ShardId id,
                                                                           Digest digest) {
  CKPT_CO_TRY(auto connection, co_await dial_for_records(std::move(peer)));
  auto record = co_await fetch_record(connection, id, digest);
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
                              OnChunk on_chunk, std::optional<Digest> record_digest) {
  replicate::TransferOptions options = transfer_options();
  options.record_digest = record_digest;
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
