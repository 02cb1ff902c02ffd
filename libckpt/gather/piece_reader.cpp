#include "gather/piece_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "gather/found_pieces.hpp"
#include "storage/parallel.hpp"

namespace ckpt::gather {

namespace {

constexpr std::size_t shards_in_flight = 4;
constexpr std::size_t gaps_named_max = 5;
constexpr std::size_t checks_in_flight = 4;  // As many threads may take checksums.
// Bits that flip in a Chunk each time that it comes are those of a broken machine.
constexpr int reads_max = 2;
// Each plan after the first leaves out all shards that could not be read by the one before.
constexpr int plans_max = 3;

using Record = std::shared_ptr<const format::ShardRecord>;
using Records = std::map<std::uint32_t, Record>;  // By rank.

// A shard that some bytes are read from.
struct Shard {
  std::uint32_t rank = 0;
  Record record;
  std::optional<ShardPlaces> places;
  std::vector<std::size_t> unread;  // Chunks, ascending.
};

// Lives in the frame that waits for all its workers.
struct PieceReading {
  ShardSource& source;
  ReaderRank reader;
  Wants wants;
  storage::TransferHooks hooks;
  std::optional<TargetChunks> targets;  // None: nobody takes their checksums.
  TakeChecksums take_checksums;
  std::vector<plan::Holder> holders;  // By rank.
  plan::PieceIndex index;
  plan::Plan plan;
  int plans = 1;
  std::vector<Shard> shards;                // Those that are read, by rank.
  std::map<std::uint32_t, Error> failures;  // By rank: the next plan leaves it out.
  bool is_counted = true;                   // False: what comes is read again.
};

// `found` lives until the Task ends.
Task<void> look_at(ShardSource& source, FoundPieces& found, std::uint32_t rank) {
  std::vector<std::string> names = found.names();
  CKPT_CO_TRY(Excerpt excerpt, co_await source.look(rank, std::move(names)));
  found.add(rank, std::move(excerpt));
  co_return Status();
}

std::string text_of(std::span<const plan::Gap> gaps, std::span<const plan::Want> wants) {
  std::string text;
  for (const plan::Gap& gap : gaps.first(std::min(gaps.size(), gaps_named_max)))
    text += (text.empty() ? "" : ", ") + plan::describe(gap, wants);
  if (gaps.size() > gaps_named_max)
    text += fmt::format(" and {} more", gaps.size() - gaps_named_max);
  return text;
}

std::vector<plan::Holder> holders_of(const ShardSource& source) {
  std::vector<plan::Holder> holders(source.shard_count());
  for (std::uint32_t rank = 0; rank < holders.size(); ++rank)
    holders[rank].tier = static_cast<std::uint8_t>(source.nearness(rank));
  return holders;
}

Result<plan::Plan> plan_of(const PieceReading& reading) {
  std::vector<plan::Want> wants;
  for (const WantedPiece& wanted : reading.wants.pieces) wants.push_back(wanted.want);
  auto plan = plan::make_plan(reading.index, wants, {reading.holders, reading.reader.rank});
  if (!plan) {
    // Never not_found: to a trainer it would mean that there is nothing to restore.
    const Errc code =
        plan.error().code() == Errc::not_found ? Errc::invalid_argument : plan.error().code();
    return fail(Error(code, plan.error().message()));
  }
  if (!plan->gaps.empty())
    return fail(Errc::invalid_argument,
                fmt::format("no rank has saved {}; an older step may have it: `ckpt verify` names "
                            "the steps that lack it",
                            text_of(plan->gaps, wants)));
  return plan;
}

std::set<std::uint32_t> ranks_read(const plan::Plan& plan, const Wants& wants) {
  std::set<std::uint32_t> ranks;
  for (const plan::Transfer& transfer : plan.transfers) ranks.insert(transfer.holder);
  for (const WantedBytes& wanted : wants.bytes) ranks.insert(wanted.rank);
  return ranks;
}

// Gives each shard that is read the reasons to read some of its Chunks.
void divide_work(PieceReading& reading, const Records& records) {
  reading.shards.clear();
  const ShardPlaces::Facts facts{reading.plan, reading.wants, reading.targets};
  for (const auto& [rank, record] : records) {
    CKPT_ASSERT(record != nullptr);
    Shard& shard = reading.shards.emplace_back();
    shard.rank = rank;
    shard.record = record;
    shard.places.emplace(record, facts);
  }
  const auto places_in = [&](std::uint32_t rank) -> ShardPlaces& {
    const auto shard = std::ranges::lower_bound(reading.shards, rank, {}, &Shard::rank);
    CKPT_ASSERT(shard != reading.shards.end());
    return *shard->places;
  };
  for (std::uint32_t number = 0; number < reading.plan.transfers.size(); ++number)
    places_in(reading.plan.transfers[number].holder).want_transfer(number);
  for (std::uint32_t number = 0; number < reading.wants.bytes.size(); ++number)
    places_in(reading.wants.bytes[number].rank).want_bytes(number);
  for (Shard& shard : reading.shards) shard.unread = shard.places->chunks();
}

// Returns true, and takes no tensor from the shard in later plans, if other ranks have copies of
// all that this plan takes from it. Bytes that are wanted of the shard itself are then read without
// the rest: the bad Chunk may be another one.
bool can_do_without(PieceReading& reading, std::uint32_t rank, Errc why) {
  const bool may_be_elsewhere = why == Errc::corruption || why == Errc::unavailable ||
                                why == Errc::io || why == Errc::not_found;
  const bool is_wanted_itself = std::ranges::any_of(
      reading.wants.bytes, [&](const WantedBytes& wanted) { return wanted.rank == rank; });
  if (is_wanted_itself && why != Errc::corruption) return false;
  const bool gives_pieces = std::ranges::any_of(
      reading.plan.transfers, [&](const plan::Transfer& piece) { return piece.holder == rank; });
  if (!may_be_elsewhere || !gives_pieces || reading.plans == plans_max) return false;
  plan::Holder& holder = reading.holders.at(rank);
  CKPT_ASSERT(holder.is_usable);
  holder.is_usable = false;
  if (plan_of(reading)) return true;
  holder.is_usable = true;
  return false;
}

Task<void> read_shard_of(PieceReading& reading, std::size_t number) {
  Shard& shard = reading.shards[number];
  if (shard.unread.empty()) co_return Status();
  ShardPlaces& places = *shard.places;
  std::vector<std::size_t> chunks = std::exchange(shard.unread, {});
  ChunkSink sink;
  sink.wanted_bytes = [&](std::size_t index) {
    return reading.is_counted ? places.wanted_bytes(index) : 0;
  };
  sink.take = [&](std::size_t index, std::span<const std::byte> bytes) {
    if (!bytes.empty()) places.copy(index, bytes);
    const std::uint64_t came = reading.is_counted ? places.wanted_bytes(index) : 0;
    if (reading.hooks.verified) reading.hooks.verified(came);
  };
  sink.copy = [&](std::size_t index, std::span<const std::byte> bytes) {
    places.copy(index, bytes);
  };
  sink.places = [&](std::size_t index) { return places.places_of(index); };
  sink.placed = [&](std::size_t index, std::span<const Crc32> crcs) { places.placed(index, crcs); };
  auto read =
      co_await reading.source.read(shard.record, std::move(chunks), std::move(sink), reading.hooks);
  if (!read && can_do_without(reading, shard.rank, read.error().code())) {
    reading.failures.emplace(shard.rank, read.error());
    co_return Status();
  }
  co_return read;
}

// `reading` lives until the Task ends.
Task<void> read_unread(PieceReading& reading) {
  std::function<Task<void>(std::size_t)> read_from = [&](std::size_t number) {
    return read_shard_of(reading, number);
  };
  auto read = co_await storage::for_each_parallel(reading.shards.size(), shards_in_flight,
                                                  std::move(read_from));
  co_return read;
}

// Begins anew without the shards that failed. All is read again: this is rare, and another plan may
// take any piece from another rank.
Task<void> plan_again(PieceReading& reading) {
  CKPT_ASSERT(!reading.failures.empty());
  CKPT_ASSERT(reading.plans < plans_max);
  const auto& [failed, why] = *reading.failures.begin();
  log_warning("restore: rank {}{} cannot be read, and copies that other ranks declared are: {}",
              failed, reading.failures.size() > 1 ? " and others" : "", why.message());
  reading.failures.clear();
  ++reading.plans;
  CKPT_CO_TRY(plan::Plan plan, plan_of(reading));
  Records records;
  for (const Shard& shard : reading.shards) records.emplace(shard.rank, shard.record);
  const std::set<std::uint32_t> ranks = ranks_read(plan, reading.wants);
  std::erase_if(records, [&](const auto& each) { return !ranks.contains(each.first); });
  for (const std::uint32_t rank : ranks) {
    if (records.contains(rank)) continue;
    std::vector<std::string> no_names;
    CKPT_CO_TRY(Excerpt excerpt, co_await reading.source.look(rank, std::move(no_names)));
    records.emplace(rank, std::move(excerpt.record));
  }
  reading.plan = std::move(plan);
  divide_work(reading, records);
  reading.is_counted = false;
  co_return Status();
}

// `reading` lives until the Task ends.
Task<void> read_all(PieceReading& reading) {
  CKPT_CO_CHECK(co_await read_unread(reading));
  while (!reading.failures.empty()) {
    CKPT_CO_CHECK(co_await plan_again(reading));
    CKPT_CO_CHECK(co_await read_unread(reading));
  }
  co_return Status();
}

struct ChunkOfShard {
  std::size_t shard = 0;  // Its place in the list.
  std::size_t chunk = 0;
};

// Sorts it among the unread ones if it does not lie there any more.
Task<void> check_chunk(PieceReading& reading, ChunkOfShard it) {
  Shard& shard = reading.shards[it.shard];
  bool holds = false;
  std::function<void()> look = [&] { holds = shard.places->holds(it.chunk); };
  CKPT_CO_CHECK(co_await run_on(reading.hooks.compute, std::move(look)));
  if (!holds) shard.unread.insert(std::ranges::upper_bound(shard.unread, it.chunk), it.chunk);
  if (reading.hooks.verified) reading.hooks.verified(0);
  co_return Status();
}

// In the order of memory.
std::vector<RunSum> known_sums(const PieceReading& reading) {
  std::vector<RunSum> known;
  for (const Shard& shard : reading.shards) {
    for (const std::size_t chunk : shard.places->chunks())
      std::ranges::copy(shard.places->sums(chunk), std::back_inserter(known));
  }
  std::ranges::sort(known, {}, &RunSum::begin);
  return known;
}

// Finds the Chunks that have to come again. Those whose sums are known matter no more: whoever
// reads them compares the checksum.
Task<void> check_all(PieceReading& reading) {
  std::vector<ChunkOfShard> all;
  for (std::size_t shard = 0; shard < reading.shards.size(); ++shard) {
    CKPT_ASSERT(reading.shards[shard].unread.empty());
    const ShardPlaces& places = *reading.shards[shard].places;
    for (const std::size_t chunk : places.chunks())
      if (places.sums(chunk).empty()) all.push_back({shard, chunk});
  }
  std::function<Task<void>(std::size_t)> check = [&](std::size_t number) {
    return check_chunk(reading, all[number]);
  };
  auto checked =
      co_await storage::for_each_parallel(all.size(), checks_in_flight, std::move(check));
  co_return checked;
}

// "chunk 3 of rank 1 (tensor "w"), and 2 more"; empty: all lie there as they came.
std::string name_of_changed(const PieceReading& reading) {
  std::string first;
  std::size_t more = 0;
  for (const Shard& shard : reading.shards) {
    for (const std::size_t chunk : shard.unread) {
      if (!first.empty()) {
        ++more;
        continue;
      }
      first =
          fmt::format("chunk {} of rank {} ({})", chunk, shard.rank, shard.places->name_of(chunk));
    }
  }
  return more == 0 ? first : fmt::format("{}, and {} more,", first, more);
}

// `reading` lives until the Task ends.
Task<void> look_and_plan(PieceReading& reading) {
  reading.holders = holders_of(reading.source);
  FoundPieces found(reading.wants, reading.reader, reading.holders);
  std::function<Task<void>(std::size_t)> look = [&](std::size_t rank) {
    return look_at(reading.source, found, static_cast<std::uint32_t>(rank));
  };
  CKPT_CO_CHECK(co_await storage::for_each_parallel(reading.holders.size(), looks_in_flight,
                                                    std::move(look)));
  CKPT_CO_TRY(reading.index, found.index());
  CKPT_CO_TRY(reading.plan, plan_of(reading));
  Records records;
  for (const std::uint32_t rank : ranks_read(reading.plan, reading.wants))
    records.emplace(rank, found.record(rank));
  divide_work(reading, records);
  co_return Status();
}

}  // namespace

Task<void> check_pieces(ShardSource& source, ReaderRank reader, std::vector<WantedPiece> pieces) {
  PieceReading reading{source, reader, Wants{std::move(pieces), {}}, {}, {}, {}};
  auto planned = co_await look_and_plan(reading);
  co_return planned;
}

Task<void> read_pieces(ShardSource& source, ReaderRank reader, Wants wants,
                       storage::TransferHooks hooks) {
  PieceReading reading{source, reader, std::move(wants), std::move(hooks), {}, {}};
  CKPT_CO_CHECK(co_await look_and_plan(reading));
  auto read = co_await read_all(reading);
  co_return read;
}

Task<void> read_pieces(ShardSource& source, ReaderRank reader, Wants wants,
                       storage::TransferHooks hooks, TargetChunks targets,
                       TakeChecksums take_checksums) {
  CKPT_ASSERT(take_checksums != nullptr);
  PieceReading reading{source,           reader,  std::move(wants),
                       std::move(hooks), targets, std::move(take_checksums)};
  CKPT_CO_CHECK(co_await look_and_plan(reading));
  std::string changed;
  for (int reads = 0; reads < reads_max; ++reads) {
    CKPT_CO_CHECK(co_await read_all(reading));
    // In this order: what changes before the check is found by it, what changes later does not
    // match these checksums.
    CKPT_CO_CHECK(co_await reading.take_checksums(known_sums(reading)));
    CKPT_CO_CHECK(co_await check_all(reading));
    changed = name_of_changed(reading);
    if (changed.empty()) co_return Status();
    log_warning("restore: {} changed in memory after it was verified", changed);
    reading.is_counted = false;
  }
  co_return fail(Errc::corruption,
                 fmt::format("restore: {} changed in memory after it was verified, and again when "
                             "it was read again",
                             changed));
}

}  // namespace ckpt::gather
