#include "node/stored_reads.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "gather/stored_shards.hpp"
#include "storage/repair.hpp"

namespace ckpt::node {

namespace {

using Record = std::shared_ptr<const format::ShardRecord>;

// Places of shards that this node has restored from storage.
constexpr std::size_t found_max = 4096;

}  // namespace

Task<void> StoredReads::look_up(format::StepId at) {
  looked_up_.reset();
  std::optional<Error> first;
  for (StoredPlace& place : places_) {
    const Status looked = co_await place.look_up(at);
    if (!looked && !first) first.emplace(looked.error());
    if (!looked || place.name_of(at).empty()) continue;
    looked_up_ = at;
    co_return Status();
  }
  if (first) co_return fail(std::move(*first));
  co_return Status();
}

Task<storage::OpenStep> StoredReads::open(format::StepId at) const {
  for (const StoredPlace& place : places_) {
    std::string name = place.name_of(at);
    if (name.empty()) continue;
    auto step = co_await storage::OpenStep::in(place.site(), std::move(name));
    co_return step;
  }
  co_return fail(Errc::not_found, "it is not on storage any more");
}

void StoredReads::forget() {
  looked_up_.reset();
  std::erase_if(bad_, [](const auto& each) { return each.second != Errc::corruption; });
}

void StoredReads::forget_damage(const std::function<bool(format::ShardId id)>& may_be_mended) {
  std::erase_if(bad_, [&](const auto& each) { return may_be_mended(each.first.id); });
}

std::vector<StoredReads::Bad> StoredReads::damaged_copies() const {
  std::vector<Bad> damaged;
  for (const auto& [bad, code] : bad_)
    if (code == Errc::corruption) damaged.push_back(bad);
  if (places_.size() != 2) return damaged;
  // The catalog has left out those that lack files, and the other place may have them whole.
  for (std::size_t place = 0; place < places_.size(); ++place) {
    for (const storage::Rejected& rejected : places_[place].rejected()) {
      const auto step = storage::step_of(rejected);
      if (!step || !storage::is_damage(rejected)) continue;
      for (const storage::Checkpoint& whole : places_[1 - place].checkpoints()) {
        const bool is_it = whole.at.step == *step && !facts_.is_fenced(whole.at);
        if (is_it && places_[place].name_of(whole.at).empty())
          damaged.push_back({{whole.at, 0}, place});
      }
    }
  }
  return damaged;
}

Task<void> StoredReads::repair(Bad bad, storage::TransferHooks hooks) {
  CKPT_ASSERT(bad.place < places_.size());
  std::vector<storage::StepIn> steps;  // By place.
  for (StoredPlace& place : places_) {
    CKPT_CO_CHECK(co_await place.look_up(bad.id.at));
    std::string name = place.known_name_of(bad.id.at);
    if (name.empty())
      co_return fail(Errc::not_found, fmt::format("{} lacks the step", place.directory()));
    steps.push_back({place.site(), std::move(name)});
  }
  storage::RepairOrder order;
  order.attempt = facts_.context.random.next();
  order.hooks = std::move(hooks);
  const storage::StepIn& damaged = steps.at(bad.place);
  const storage::StepIn& copy = steps.at(1 - bad.place);
  const std::string advice =
      fmt::format("remove {}, and bring it back: ckpt cp {} {}",
                  os::join(damaged.site.directory(), damaged.name),
                  os::join(copy.site.directory(), copy.name), damaged.site.directory());
  const auto manifest = co_await storage::read_manifest(damaged.site, damaged.name);
  if (!manifest && manifest.error().code() == Errc::corruption)
    co_return fail(Errc::unsupported, fmt::format("{}: {}", manifest.error().text(), advice));
  auto repaired = co_await storage::repair_checkpoint(damaged, copy, std::move(order));
  if (!repaired) co_return fail(std::move(repaired).error());
  CKPT_CO_CHECK(co_await places_[bad.place].look_up(bad.id.at));
  std::erase_if(bad_, [&](const auto& each) {
    return each.first.id.at == bad.id.at && each.first.place == bad.place;
  });
  co_return Status();
}

Task<Record> StoredReads::record_of(format::ShardId id, Digest digest) {
  std::optional<Error> first;
  std::vector<std::size_t> damaged;
  for (std::size_t place = 0; place < places_.size(); ++place) {
    if (bad_.contains({id, place})) continue;
    auto record = co_await record_at(place, id, digest);
    if (!record && record.error().code() == Errc::corruption) damaged.push_back(place);
    // Only what another place has is healed from there.
    if (record)
      for (const std::size_t bad : damaged) bad_.emplace(Bad{id, bad}, Errc::corruption);
    if (record && first && first->code() != Errc::not_found)
      log_warning("job={} step={} rank={} is read from {}: {}", facts_.shape.job,
                  number(id.at.step), id.rank, places_[place].directory(), first->message());
    if (record) co_return record;
    // A file that is not there explains less than one that could not be read.
    if (!first || first->code() == Errc::not_found) first.emplace(record.error());
  }
  if (!first) first.emplace(Errc::not_found, "no place has a good copy of it");
  co_return fail(std::move(*first));
}

Task<Record> StoredReads::record_at(std::size_t place, format::ShardId id, Digest digest) {
  const std::string known = places_[place].name_of(id.at);
  if (!known.empty()) {
    auto record = co_await record_in(place, known, id, digest);
    // Else it was saved again since we looked, maybe under another name.
    if (record || record.error().code() != Errc::not_found) co_return record;
  }
  CKPT_CO_CHECK(co_await places_[place].look_up(id.at));
  const std::string name = places_[place].name_of(id.at);
  if (name.empty()) {
    co_return fail(Errc::not_found, fmt::format("step {} is not on storage", number(id.at.step)));
  }
  looked_up_ = id.at;
  auto record = co_await record_in(place, name, id, digest);
  co_return record;
}

Task<Record> StoredReads::record_in(std::size_t place, std::string name, format::ShardId id,
                                    Digest digest) {
  CKPT_CO_TRY(const auto step, co_await storage::OpenStep::in(places_[place].site(), name));
  CKPT_CO_TRY(auto shard, storage::shard_of(step, id.rank));
  if (shard.record != digest) {
    co_return fail(Errc::not_found,
                   fmt::format("{} holds another save of step {}", name, number(id.at.step)));
  }
  if (found_.size() >= found_max)
    std::erase_if(found_, [&](const auto& known) { return known.first.at != id.at; });
  found_.insert_or_assign(id, Found{place, std::move(shard)});
  auto record = co_await storage::read_record(step, id.rank);
  co_return record;
}

Result<StoredReads::Found> StoredReads::find(format::ShardId id) const {
  const auto found = found_.find(id);
  if (found == found_.end()) return fail(Errc::not_found, "the step is not on storage");
  return found->second;
}

std::string StoredReads::other_place_of(format::ShardId id) const {
  const auto found = find(id);
  if (!found || found->place == 0) return {};
  return places_[found->place].directory();
}

// True: another place has the shard, and is where it is read from now.
Task<bool> StoredReads::turn_away(format::ShardId id, Error error) {
  const auto found = find(id);
  const bool may_be_elsewhere = error.code() == Errc::corruption || error.code() == Errc::io ||
                                error.code() == Errc::not_found;
  if (!found || places_.size() == 1 || !may_be_elsewhere) co_return false;
  bad_.emplace(Bad{id, found->place}, error.code());
  const auto record = co_await record_of(id, found->shard.record);
  if (!record) co_return false;
  const auto now = find(id);
  if (!now) co_return false;
  log_warning("job={} step={} rank={} is read from {}: {}", facts_.shape.job, number(id.at.step),
              id.rank, os::display(now->shard.files.directory), error.message());
  co_return true;
}

Task<void> StoredReads::read(Record record, std::span<std::byte> target, BytesVerified verified) {
  while (true) {
    CKPT_CO_TRY(const Found found, find(record->id));
    storage::TransferHooks hooks;
    hooks.compute = facts_.context.seams.compute;
    hooks.verified = verified;
    Status read = co_await storage::read_shard(found.shard, record, target, std::move(hooks));
    if (read) co_return read;
    const auto turned = co_await turn_away(record->id, read.error());
    if (!turned || !*turned) co_return read;
  }
}

Task<void> StoredReads::read_good(Record record, MissingChunks missing) {
  for (std::size_t place = 0; place < places_.size(); ++place)
    (void)co_await read_good_at(place, record, missing);  // The next one may have the rest.
  if (missing.next(0) == record->chunk_crcs.size()) co_return Status();
  co_return fail(Errc::corruption, fmt::format("chunk {} of step {} is good in no place",
                                               missing.next(0), number(record->id.at.step)));
}

Task<void> StoredReads::read_good_at(std::size_t place, Record record,
                                     const MissingChunks& missing) {
  const std::size_t count = record->chunk_crcs.size();
  const std::string name = places_[place].known_name_of(record->id.at);
  if (name.empty() || missing.next(0) == count) co_return Status();
  CKPT_CO_TRY(const auto step, co_await storage::OpenStep::in(places_[place].site(), name));
  CKPT_CO_TRY(const auto shard, storage::shard_of(step, record->id.rank));
  if (shard.record != format::digest_of(*record)) co_return Status();  // Another save.
  CKPT_CO_TRY(const auto opened, co_await storage::open_files(shard, record));
  storage::TransferHooks hooks;
  hooks.compute = facts_.context.seams.compute;
  for (std::size_t index = missing.next(0); index < count; index = missing.next(index + 1)) {
    const std::span<std::byte> target = missing.place(index);
    const Status read = co_await opened->read_chunk(index, target, hooks);
    if (read) missing.came(index);
  }
  (void)co_await opened->close();  // Every Chunk was verified: a failure changes nothing.
  co_return Status();
}

Task<void> StoredReads::read_chunks(Record record, std::vector<std::size_t> chunks,
                                    gather::ChunkSink sink, const storage::TransferHooks& hooks) {
  std::set<std::size_t> left(chunks.begin(), chunks.end());
  gather::ChunkSink take_once = sink;
  take_once.take = [&](std::size_t index, std::span<const std::byte> bytes) {
    if (left.erase(index) > 0) sink.take(index, bytes);
  };
  while (true) {
    CKPT_CO_TRY(const Found found, find(record->id));
    std::vector<std::size_t> wanted(left.begin(), left.end());
    Status read = co_await gather::read_stored_chunks(found.shard, record, std::move(wanted),
                                                      take_once, hooks);
    if (read) co_return read;
    const auto turned = co_await turn_away(record->id, read.error());
    if (!turned || !*turned) co_return read;
  }
}

}  // namespace ckpt::node
