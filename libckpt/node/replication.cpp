#include "node/replication.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "agree/timelines.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "node/job.hpp"
#include "node/peers.hpp"
#include "replicate/placement.hpp"
#include "replicate/replica_sender.hpp"

namespace ckpt::node {

using arena::Slot;

namespace {

constexpr Duration retry_after = std::chrono::milliseconds(50);
constexpr Duration retry_after_max = std::chrono::seconds(2);
constexpr Duration copy_slow_after = std::chrono::seconds(30);  // When told; as for storage.
// An attempt that has lasted so long gets on: one that stands still has failed by then.
constexpr Duration failure_counts_for = std::chrono::seconds(25);

replicate::ShardSource source_of(std::shared_ptr<Slot> slot) {
  auto lease = std::make_shared<const arena::Lease>(std::move(slot));
  replicate::ShardSource source;
  source.record = lease->shared_record();
  source.spans = lease->file_spans({0, source.record->bytes});
  source.lease = std::move(lease);
  return source;
}

}  // namespace

Replication::Replication(Job& job) : job_(job), changed_(job.context().seams.clock) {}
Replication::~Replication() = default;

void Replication::stop() {
  is_stopping_ = true;
  changed_.close();
  for (const auto& connection : served_) connection->close();
  for (const auto& [target, connection] : feed_connections_) {
    if (connection) connection->close();
  }
}

void Replication::wake() {
  if (is_stopping_) return;
  choose_targets();
  // A restore may bring back what targets have freed since; what they still have is sent no second
  // time when it is offered again.
  const std::uint64_t timeline = agree::newest_timeline(job_.history());
  if (timeline != given_in_) given_.clear();
  given_in_ = timeline;
  for (const std::string& target : targets_) {
    if (!fed_.insert(target).second) continue;
    asio::co_spawn(job_.context().executor, feed(target), asio::detached);
  }
  changed_.notify_all();
}

void Replication::choose_targets() {
  const agree::JobShape& shape = job_.shape();
  const Digest members = job_.members();
  if (members == placed_for_ && job_.node() == placed_as_) return;
  placed_for_ = members;
  placed_as_ = job_.node();
  targets_.clear();
  // A name may stand for another host now. What that one was given, its boot tells.
  for (auto& [target, connection] : feed_connections_) {
    if (connection) connection->close();
    connection.reset();
  }
  if (job_.secret().empty()) return;
  const Digest seed = digest_of(std::as_bytes(std::span(shape.job)));
  const auto placement = replicate::place_replicas(shape.nodes, shape.replicas, seed.low);
  if (!placement.shortfall.empty() && shape.nodes.size() > 1) {
    log_warning("job={} {}", shape.job, placement.shortfall);
  }
  for (std::size_t index = 0; index < shape.nodes.size(); ++index) {
    if (shape.nodes[index].name != job_.node()) continue;
    for (const auto target : placement.targets[index]) {
      targets_.push_back(shape.nodes[target].name);
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
  job_.slots().for_each_sealed([&](Slot& slot, bool is_own) {
    const format::StepId at = slot.id().at;
    if (!is_own || is_useless(at) || given.contains({slot.id(), slot.digest()})) return;
    // The timeline that is trained on comes first: leftovers of another, for which the target may
    // never have room, must not hold it up.
    const bool is_next =
        !next || (at.timeline != next->id().at.timeline ? at.timeline > next->id().at.timeline
                                                        : slot.id() < next->id());
    if (is_next) next = slot.shared_from_this();
  });
  return next;
}

bool Replication::is_useless(format::StepId at) const {
  return agree::is_fenced(job_.history(), at) || (job_.committed() && at < *job_.committed());
}

void Replication::note_owed(const std::string& target, const Slot* slot) {
  if (slot == nullptr) {
    owed_.erase(target);
    return;
  }
  Owed& owed = owed_[target];
  const Copy copy{slot->id(), slot->digest()};
  if (owed.copy != copy) owed = {copy, job_.context().seams.clock.now(), {}, {}};
}

void Replication::note_failure(const std::string& target, const Error& error) {
  const auto owed = owed_.find(target);
  if (owed == owed_.end()) return;
  owed->second.failed_at = job_.context().seams.clock.now();
  owed->second.failure = error.message();
}

bool Replication::has_failed(const Owed& owed, Time now) {
  return !owed.failure.empty() && now - owed.failed_at < failure_counts_for;
}

bool Replication::is_late(const std::string& target, const Owed& owed, Time now) const {
  const auto& [shard, digest] = owed.copy;
  // A target that is lost is told as such.
  if (now - owed.since < copy_slow_after || !job_.peers().is_live(target)) return false;
  if (is_useless(shard.at) || !job_.slots().find(shard, digest)) return false;
  // A large one that gets on is late only when the next one waits for it.
  bool is_late = has_failed(owed, now);
  job_.slots().for_each_sealed([&](Slot& slot, bool is_own) {
    const format::StepId at = slot.id().at;
    is_late = is_late || (is_own && at.timeline == shard.at.timeline && shard.at < at);
  });
  return is_late;
}

// Nothing is committed without copies: the Slots fill up, and steps are skipped.
std::string Replication::trouble(Time now) const {
  std::string all;
  for (const auto& [target, owed] : owed_) {
    if (!is_late(target, owed, now)) continue;
    const auto times = (now - owed.since) / copy_slow_after;  // Worded anew now and then.
    all += fmt::format("{}the copy of step {} to node {} has been under way for {} s",
                       all.empty() ? "" : "; ", number(owed.copy.first.at.step), target,
                       times * (copy_slow_after / std::chrono::seconds(1)));
    if (has_failed(owed, now)) all += ": " + owed.failure;
  }
  return all;
}

asio::awaitable<void> Replication::feed(std::string target) {
  const std::shared_ptr<Job> job = job_.shared_from_this();
  Clock& clock = job_.context().seams.clock;
  Duration backoff = retry_after;
  LogLimit complaint(30.0);
  const auto is_target = [this](const std::string& name) {
    return std::find(targets_.begin(), targets_.end(), name) != targets_.end();
  };
  while (!is_stopping_ && is_target(target)) {
    note_boot(target, job_.peers().boot_of(target));
    std::shared_ptr<Slot> slot = job_.peers().is_live(target) ? next_for(target) : nullptr;
    note_owed(target, slot.get());
    if (!slot) {
      auto woken = co_await changed_.wait_until(clock.after(std::chrono::seconds(1)));
      if (!woken) break;
      continue;
    }
    auto sent = co_await send(target, slot);
    if (is_stopping_) break;
    if (sent) {
      owed_.erase(target);
      backoff = retry_after;
      job->touch();
      continue;
    }
    note_failure(target, sent.error());
    if (complaint.may_speak()) {
      log_info("job={} target={} copy not taken, tried again: {}", job->shape().job, target,
               sent.error().message());
    }
    auto slept = co_await sleep_until(clock, clock.after(backoff));
    if (!slept) break;
    backoff = std::min(backoff * 2, retry_after_max);
  }
  const auto connection = feed_connections_.find(target);
  if (connection != feed_connections_.end()) {
    if (connection->second) connection->second->close();
    feed_connections_.erase(connection);
  }
  owed_.erase(target);
  fed_.erase(target);
}

Task<void> Replication::send(std::string target, std::shared_ptr<Slot> slot) {
  const replicate::ShardSource source = source_of(slot);
  const Copy copy{slot->id(), slot->digest()};
  slot.reset();
  std::shared_ptr<wire::Connection> connection = feed_connections_[target];
  if (!connection) {
    std::uint64_t boot = 0;
    auto dialed = co_await job_.peers().dial(target, wire::Purpose::data, &boot);
    if (!dialed) co_return fail(std::move(dialed).error());
    connection = std::move(*dialed);
    feed_connections_[target] = connection;
    note_boot(target, boot);
  }
  CKPT_POINT("repl.begin");
  replicate::TransferOptions options = transfer_options();
  options.throttle = job_.giving_way().throttle(Work::copies);
  WorkMeter::Pass under_way = job_.giving_way().begin(Work::copies);
  auto sent = co_await replicate::send_shard(*connection, job_.context().seams.clock, source,
                                             std::move(options));
  under_way.end(job_.context().seams.clock.now());
  CKPT_POINT("repl.end");
  const bool is_usable =
      sent ? *sent == replicate::Delivery::applied : sent.error().code() == Errc::exhausted;
  if (!is_usable) {
    connection->close();
    feed_connections_.erase(target);
  }
  if (sent && *sent == replicate::Delivery::declined) {
    // One of us is behind: a step that both know to be of no use is not offered at all.
    co_return fail(Errc::unavailable, target + " has no use for it, as far as it knows");
  }
  if (sent) {
    std::set<Copy>& given = given_[target];
    given.insert(copy);
    // Only what is still held can be asked for again.
    std::erase_if(given, [&](const Copy& old) {
      return job_.committed() && old.first.at < *job_.committed();
    });
    co_return Status{};
  }
  if (sent.error().code() == Errc::corruption) {
    // Noise on the way must not cost us a good copy: it goes only if it is ours that is damaged.
    auto damage = co_await replicate::find_damage(job_.context().seams.compute, source);
    if (damage && *damage) damaged(job_.shape().job, copy.first, copy.second, **damage);
  }
  co_return fail(std::move(sent).error());
}

replicate::TransferOptions Replication::transfer_options() const {
  replicate::TransferOptions options;
  options.timeline = agree::newest_timeline(job_.history());
  options.compute = job_.context().seams.compute;
  return options;
}

// --- what peers ask of us ---

void Replication::admit(std::shared_ptr<wire::Connection> connection, wire::PeerIdentity identity) {
  if (is_stopping_) {
    connection->close();
    return;
  }
  asio::co_spawn(job_.context().executor, serve(std::move(connection), std::move(identity)),
                 asio::detached);
}

asio::awaitable<void> Replication::serve(std::shared_ptr<wire::Connection> connection,
                                         wire::PeerIdentity identity) {
  const std::shared_ptr<Job> job = job_.shared_from_this();
  served_.insert(connection);
  replicate::ServiceOptions options;
  auto served =
      co_await replicate::serve_peer(connection, job_.context().seams.clock, std::move(identity),
                                     *this, *this, std::move(options));
  if (!served) log_info("job={} {}", job->shape().job, served.error().message());
  served_.erase(connection);
}

Result<replicate::ReplicaTarget> Replication::reserve(const replicate::ShardOffer& offer) {
  const format::ShardRecord& record = *offer.record;
  const std::string what =
      fmt::format("copy of step {} rank {}", number(record.id.at.step), record.id.rank);
  if (record.job != job_.shape().job || record.run != job_.shape().run) {
    return fail(Errc::not_found, what + ": another run");
  }
  if (record.world_size != job_.shape().world_size || record.id.rank >= record.world_size) {
    return fail(Errc::cancelled, what + ": another world size");
  }
  if (agree::is_fenced(job_.history(), record.id.at)) {
    return fail(Errc::cancelled, what + ": fenced: its timeline was abandoned");
  }
  if (job_.committed() && record.id.at < *job_.committed()) {
    return fail(Errc::cancelled, what + ": a newer step is committed");
  }
  replicate::ReplicaTarget target;
  target.ticket = next_ticket_++;
  target.hold = job_.giving_way().begin_receiving();
  if (job_.slots().find(record.id, offer.digest)) {
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
    return target;
  }
  auto slot = job_.slots().take_replica(record, [job = job_.shared_from_this()] { job->touch(); });
  if (!slot && slot.error().code() == Errc::exhausted && make_room(record.id.rank)) {
    slot = job_.slots().take_replica(record, [job = job_.shared_from_this()] { job->touch(); });
  }
  if (!slot) return fail(std::move(slot).error());
  (*slot)->begin_fill(record.id);
  target.bytes = (*slot)->memory().bytes();
  target.applied = replicate::ChunkSet(record.chunk_crcs.size());
  receiving_[target.ticket] = {*slot, offer.record, offer.digest, target.applied, target.hold};
  return target;
}

// A reception that broke off gives way to one of another step.
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
  const bool is_useless =
      receiving.is_freed || agree::is_fenced(job_.history(), receiving.record->id.at);
  if (is_useless) {
    receiving.slot->abandon();
    return fail(Errc::cancelled, "seal a copy: fenced, or its memory was freed");
  }
  receiving.slot->filled();
  receiving.slot->seal(std::move(receiving.record));
  CKPT_POINT("repl.ack.after");
  job_.touch();
  return {};
}

void Replication::abandoned(std::uint64_t ticket) {
  // What was applied stays for the next offer of the same shard, until its Slot is needed.
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

Result<replicate::ShardSource> Replication::lease(const std::string& job,
                                                  const format::ShardId& shard,
                                                  const Digest& digest) {
  std::shared_ptr<Slot> slot = job_.slots().find(shard, digest);
  if (job != job_.shape().job || !slot) {
    return fail(Errc::not_found, fmt::format("step {} rank {}: no copy on node {}",
                                             number(shard.at.step), shard.rank, job_.node()));
  }
  return source_of(std::move(slot));
}

void Replication::damaged(const std::string&, const format::ShardId& shard, const Digest& digest,
                          std::size_t chunk) {
  log_warning("job={} step={} rank={} chunk={} of our copy is damaged", job_.shape().job,
              number(shard.at.step), shard.rank, chunk);
  job_.slots().quarantine(shard, digest);
  job_.touch();
}

// --- what we ask of peers ---

Task<std::shared_ptr<wire::Connection>> Replication::fetch_connection(std::string peer) {
  // One for each fetch: restores are rare, and several ranks may fetch at once.
  return job_.peers().dial(std::move(peer), wire::Purpose::data, nullptr);
}

Task<std::shared_ptr<const format::ShardRecord>> Replication::fetch_record(std::string peer,
                                                                           format::ShardId id,
                                                                           Digest digest) {
  CKPT_CO_TRY(auto connection, co_await fetch_connection(std::move(peer)));
  auto record = co_await replicate::fetch_record(*connection, job_.context().seams.clock, id,
                                                 digest, transfer_options());
  connection->close();
  co_return record;
}

Task<void> Replication::fetch(std::string peer, std::shared_ptr<const format::ShardRecord> record,
                              std::shared_ptr<Slot> target, BytesVerified verified) {
  CKPT_CO_TRY(auto connection, co_await fetch_connection(std::move(peer)));
  const std::span<std::byte> bytes = target->memory().bytes().first(record->bytes);
  replicate::ChunkSet have(record->chunk_crcs.size());
  replicate::TransferOptions options = transfer_options();
  options.on_chunk = [record, verified](std::size_t index) {
    verified(record->chunk(index).bytes);
  };
  auto fetched = co_await replicate::fetch_shard(*connection, job_.context().seams.clock, record,
                                                 bytes, std::move(have), std::move(options));
  connection->close();
  co_return fetched;
}

}  // namespace ckpt::node
