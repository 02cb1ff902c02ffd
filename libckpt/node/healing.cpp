#include "node/healing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "arena/arena_limits.hpp"
#include "base/assert.hpp"
#include "base/log.hpp"
#include "node/copy_base.hpp"
#include "replicate/chunk_stream.hpp"
#include "replicate/joint_fetch.hpp"

namespace ckpt::node {

using arena::Slot;

namespace {

// A restore that met the damage brings the bytes by itself.
constexpr Duration heal_after = std::chrono::seconds(2);
constexpr Duration heal_again_after = std::chrono::seconds(10);
constexpr std::uint32_t tries_max = 6;
constexpr Duration slot_wait_max = std::chrono::seconds(30);  // Until memory is made.

}  // namespace

Healing::Healing(const JobFacts& facts, JobLife& life, SlotTable& slots, Peers& peers,
                 Replication& replication, JobStorage& storage)
    : facts_(facts),
      life_(life),
      slots_(slots),
      peers_(peers),
      replication_(replication),
      storage_(storage),
      stopped_(facts.clock()) {}

void Healing::open() {
  if (facts_.context.options.verify_every > Duration{}) facts_.context.spawn(verify_now_and_then());
}

void Healing::stop() {
  is_stopping_ = true;
  stopped_.close();
}

void Healing::memory_freed() {
  ++memory_;
  lost_.clear();
}

void Healing::wake() {
  for (auto& [id, digest] : slots_.take_quarantined())
    lost_.insert_or_assign(id, Lost{digest, Source::peers, 0});
  // A copy of a rank's own that was healed lies in memory that is needed no longer.
  if (lost_.empty()) slots_.let_go_healed();
  begin(Source::peers, uses_memory_);
  begin(Source::storage, uses_storage_);
}

void Healing::begin(Source source, bool& is_running) {
  if (is_running || is_stopping_ || !is_needed(source)) return;
  is_running = true;
  facts_.context.spawn(run(source));
}

void Healing::count(std::uint64_t& healed, std::string what) {
  ++healed;
  log_info("job={} healed: {}", facts_.shape.job, what);
  healed_.newest = std::move(what);
  life_.touch();
}

// --- finding damage ---

asio::awaitable<void> Healing::verify_now_and_then() {
  const std::shared_ptr<void> held = life_.hold();
  const EngineOptions& options = facts_.context.options;
  while (!is_stopping_) {
    auto waited = co_await stopped_.wait_until(facts_.clock().after(options.verify_every));
    if (!waited) co_return;
    co_await verify_memory();
    // Storage that hangs must not keep memory from being verified.
    if (options.verify_stored && !is_stopping_ && !std::exchange(is_reading_files_, true))
      facts_.context.spawn(verify_files());
  }
}

asio::awaitable<void> Healing::verify_memory() {
  std::vector<std::weak_ptr<Slot>> copies;
  slots_.for_each_sealed([&](Slot& slot, bool) { copies.push_back(slot.weak_from_this()); });
  for (const std::weak_ptr<Slot>& copy : copies) co_await verify_copy(copy);
}

// Holds the Slot for a Chunk at a time: training may need it. A node may have two copies of a shard
// (a rank's own, and one for another node), so the Slot says which one is looked at.
asio::awaitable<void> Healing::verify_copy(std::weak_ptr<Slot> copy) {
  std::shared_ptr<const format::ShardRecord> looked_at;
  for (std::size_t index = 0; !is_stopping_; ++index) {
    const std::shared_ptr<Slot> slot = copy.lock();
    if (!slot || !SlotTable::is_readable(*slot) || facts_.is_useless(slot->id().at)) co_return;
    if (!looked_at) looked_at = slot->record();
    if (looked_at != slot->record()) co_return;  // Another shard by now: the next time.
    if (index == looked_at->chunk_crcs.size()) co_return;
    const replicate::SealedShard source = source_of(slot);
    const auto is_good = co_await replicate::is_whole(facts_.context.seams.compute, source, index);
    if (!is_good) co_return;  // No thread for it: the next time.
    if (*is_good) continue;
    replication_.damaged(facts_.shape.job, source, index);
    co_return;
  }
}

// Reads the files of the newest stored step, for the ranks that train here.
asio::awaitable<void> Healing::verify_files() {
  const std::shared_ptr<void> held = life_.hold();
  std::vector<std::pair<format::ShardId, Digest>> shards;
  slots_.for_each_sealed([&](Slot& slot, bool is_own) {
    if (is_own && facts_.durable == slot.id().at) shards.emplace_back(slot.id(), slot.digest());
  });
  for (const auto& [id, digest] : shards) {
    if (is_stopping_) break;
    const Status read = co_await verify_shard(id, digest);
    if (!read && read.error().code() == Errc::corruption) storage_.note_damage(id, read.error());
  }
  is_reading_files_ = false;
}

Task<void> Healing::verify_shard(format::ShardId id, Digest digest) {
  CKPT_CO_TRY(auto record, co_await storage_.reads().record_of(id, digest));
  std::vector<std::size_t> chunks(record->chunk_crcs.size());
  std::iota(chunks.begin(), chunks.end(), std::size_t{0});
  storage::TransferHooks hooks;
  hooks.compute = facts_.context.seams.compute;
  gather::ChunkSink sink;
  sink.take = [](std::size_t, std::span<const std::byte>) {};
  Status read = co_await storage_.reads().read_chunks(std::move(record), std::move(chunks),
                                                      std::move(sink), hooks);
  co_return read;
}

// --- healing ---

bool Healing::is_needed(Source source) const {
  const bool has_copies = std::ranges::any_of(
      lost_, [source](const auto& lost) { return lost.second.source == source; });
  return has_copies || (source == Source::storage && has_files_to_heal());
}

asio::awaitable<void> Healing::run(Source source) {
  const std::shared_ptr<void> held = life_.hold();
  CKPT_ASSERT(source == Source::peers ? uses_memory_ : uses_storage_);
  Duration pause = heal_after;
  while (!is_stopping_ && is_needed(source)) {
    auto waited = co_await stopped_.wait_until(facts_.clock().after(pause));
    if (!waited) break;
    co_await heal_copies(source);
    if (source == Source::storage) co_await heal_files();
    pause = heal_again_after;
  }
  (source == Source::peers ? uses_memory_ : uses_storage_) = false;
}

bool Healing::is_wanted(format::ShardId id, const Digest& digest) const {
  const auto lost = lost_.find(id);
  return lost != lost_.end() && lost->second.digest == digest && !facts_.is_useless(id.at) &&
         !slots_.find(id, digest);
}

asio::awaitable<void> Healing::heal_copies(Source source) {
  const std::map<format::ShardId, Lost> now = lost_;
  for (const auto& [id, lost] : now) {
    if (is_stopping_) co_return;
    if (lost.source != source) continue;
    if (!is_wanted(id, lost.digest)) {
      lost_.erase(id);
      continue;
    }
    Result<std::string> from = fail(Errc::not_found, "no source");
    if (source == Source::peers) {
      from = co_await heal_from_peers(id, lost.digest);
    } else {
      from = co_await heal_from_storage(id, lost.digest);
    }
    const auto entry = lost_.find(id);
    if (entry == lost_.end() || entry->second.digest != lost.digest) continue;
    if (!from) {
      not_healed(id, from.error());
      continue;
    }
    lost_.erase(entry);
    count(healed_.copies,
          fmt::format("the copy of step {} rank {} on node {} was damaged, and came again from {}",
                      number(id.at.step), id.rank, facts_.node, *from));
  }
}

// Peers are asked some times; storage comes next, or at once where no peer has a copy.
void Healing::not_healed(format::ShardId id, const Error& error) {
  Lost& lost = lost_.at(id);
  const bool is_over = ++lost.tries == tries_max || error.code() == Errc::not_found;
  if (!is_over) return;
  if (lost.source == Source::peers && !facts_.directory.empty()) {
    lost = Lost{lost.digest, Source::storage, 0};
    return life_.touch();
  }
  log_warning("job={} step={} rank={} its damaged copy could not be replaced: {}", facts_.shape.job,
              number(id.at.step), id.rank, error.message());
  lost_.erase(id);
}

// The next two return where it came from. Errors: not_found (it is not there), and others.
Task<std::string> Healing::heal_from_peers(format::ShardId id, Digest digest) {
  replicate::HolderFailures failures;
  std::vector<std::string> holders;
  for (const std::string& peer : replication_.partners())
    if (peers_.is_live(peer)) holders.push_back(peer);
  while (!holders.empty()) {
    auto record = co_await replication_.fetch_record(holders.front(), id, digest);
    if (record) {
      auto filled = co_await fill(std::move(*record), digest, std::move(holders));
      co_return filled;
    }
    failures.add(holders.front(), std::move(record).error());
    holders.erase(holders.begin());
  }
  if (failures.empty()) co_return fail(Errc::not_found, "heal a copy: there are no peers");
  co_return fail(failures.error());
}

Task<std::string> Healing::heal_from_storage(format::ShardId id, Digest digest) {
  CKPT_CO_TRY(auto record, co_await storage_.reads().record_of(id, digest));
  std::vector<std::string> no_holders;
  auto filled = co_await fill(std::move(record), digest, std::move(no_holders));
  co_return filled;
}

// Memory that is missing is made in the background.
Task<std::shared_ptr<Slot>> Healing::take_slot(std::shared_ptr<const format::ShardRecord> record) {
  const Time deadline = facts_.clock().after(slot_wait_max);
  while (true) {
    auto slot = slots_.take_for_healing(*record, [this, held = life_.hold()] { life_.touch(); });
    const bool is_full = !slot && slot.error().code() == Errc::exhausted;
    if (is_full && replication_.make_room(record->id.rank)) continue;
    if (slot || slot.error().code() != Errc::unavailable) co_return slot;
    CKPT_CO_TRY(const bool is_notified, co_await life_.changed().wait_until(deadline));
    if (!is_notified) co_return slot;
  }
}

// Without holders, from storage. Nothing is believed that was not verified on arrival.
Task<std::string> Healing::fill(std::shared_ptr<const format::ShardRecord> record, Digest digest,
                                std::vector<std::string> holders) {
  const format::ShardId id = record->id;
  if (format::digest_of(*record) != digest)
    co_return fail(Errc::corruption, "heal a copy: another record than that of the copy");
  CKPT_CO_TRY(const std::shared_ptr<Slot> slot, co_await take_slot(record));
  if (!is_wanted(id, digest)) co_return fail(Errc::cancelled, "heal a copy: nobody needs it");
  const std::uint64_t memory = memory_;
  slot->begin_fill(id);
  const std::span<std::byte> bytes = slot->memory().bytes().first(record->bytes);
  std::string from = holders.empty() ? "storage" : "node " + holders.front();
  Status filled;
  if (holders.empty()) {
    BytesVerified verified;
    filled = co_await storage_.reads().read(record, bytes, std::move(verified));
  } else {
    replicate::ChunkSet have(record->chunk_crcs.size());
    filled =
        co_await replication_.fetch(std::move(holders), record, bytes, std::move(have), nullptr);
  }
  if (!filled || memory != memory_ || !is_wanted(id, digest)) {
    slot->abandon();
    if (!filled) co_return fail(std::move(filled).error());
    co_return fail(Errc::cancelled, "heal a copy: nobody needs it");
  }
  slot->filled();
  slot->seal(std::move(record));
  co_return from;
}

bool Healing::is_given_up(format::ShardId id) const {
  const auto tried = files_.find(id);
  return tried != files_.end() && tried->second >= tries_max;
}

std::shared_ptr<Slot> Healing::source_for(format::ShardId id) const {
  std::shared_ptr<Slot> source;
  slots_.for_each_sealed([&](Slot& slot, bool) {
    if (slot.id() == id) source = slot.shared_from_this();
  });
  return source;
}

bool Healing::has_files_to_heal() const {
  const bool has_source = std::ranges::any_of(storage_.damaged(), [&](const auto& damage) {
    return damage.code == Errc::corruption && !is_given_up(damage.id) && source_for(damage.id);
  });
  return has_source || std::ranges::any_of(storage_.reads().damaged_copies(),
                                           [&](const auto& bad) { return !is_given_up(bad.id); });
}

asio::awaitable<void> Healing::heal_files() {
  // A file that one of two places lacks is not lost while the other has it: so nobody noted it.
  std::set<format::ShardId> from_memory;
  for (const format::Damage& damage : storage_.damaged())
    if (damage.code == Errc::corruption) from_memory.insert(damage.id);
  const auto copies = storage_.reads().damaged_copies();
  for (const StoredReads::Bad& bad : copies)
    if (bad.place == 0) from_memory.insert(bad.id);
  std::erase_if(from_memory, [&](format::ShardId id) { return is_given_up(id); });
  std::vector<StoredReads::Bad> from_other = copies;
  std::erase_if(from_other, [&](const StoredReads::Bad& bad) { return is_given_up(bad.id); });
  for (const format::ShardId& id : from_memory) {
    if (is_stopping_) co_return;
    if (source_for(id)) co_await heal_from_memory(id);
  }
  for (const StoredReads::Bad& bad : from_other) {
    if (is_stopping_) co_return;
    const auto left = storage_.reads().damaged_copies();
    if (std::ranges::find(left, bad) == left.end()) continue;  // Memory had it.
    storage::TransferHooks hooks = storage_.healing_hooks();
    const Status repaired = co_await storage_.reads().repair(bad, std::move(hooks));
    note_files(bad.id, repaired, "the other place");
  }
}

asio::awaitable<void> Healing::heal_from_memory(format::ShardId id) {
  const std::shared_ptr<Slot> slot = source_for(id);
  Result<replicate::SealedShard> source = replication_.lease(facts_.shape.job, id, slot->digest());
  if (!source) co_return;
  storage::ShardToWrite to_write;
  to_write.record = source->record;
  to_write.slot = source->spans;
  const Status written = co_await storage_.write_anew(std::move(to_write));
  note_files(id, written, "memory");
}

void Healing::note_files(format::ShardId id, const Status& healed, const char* from) {
  const std::string what = fmt::format("the files of step {} rank {}", number(id.at.step), id.rank);
  if (healed) {
    files_.erase(id);
    return count(healed_.files,
                 fmt::format("{} were damaged, and were written anew from {}", what, from));
  }
  const Errc code = healed.error().code();
  const bool is_for_good = code == Errc::unsupported || code == Errc::invalid_argument;
  std::uint32_t& tries = files_[id];
  tries = is_for_good ? tries_max : tries + 1;
  log_warning("job={} {} are damaged and were not replaced from {}: {}", facts_.shape.job, what,
              from, healed.error().message());
}

}  // namespace ckpt::node
