#include "gather/piece_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "gather/found_pieces.hpp"
#include "gather/shard_places.hpp"
#include "storage/parallel.hpp"

namespace ckpt::gather {

namespace {

// Descriptions are small, and many shards may have no wanted name.
constexpr std::size_t looks_in_flight = 16;
constexpr std::size_t shards_in_flight = 4;
constexpr std::size_t gaps_named_max = 5;
constexpr std::size_t checks_in_flight = 4;  // As many threads may take checksums.
// Bits that flip in a Chunk each time that it comes are those of a broken machine.
constexpr int reads_max = 2;

// A shard that some bytes are read from.
struct Shard {
  std::uint32_t rank = 0;
  std::shared_ptr<const format::ShardRecord> record;
  std::optional<ShardPlaces> places;
  std::vector<std::size_t> unread;  // Chunks, ascending.
};

// Lives in the frame that waits for all its workers.
struct PieceReading {
  ShardSource& source;
  ReaderRank reader;
  Wants wants;
  storage::TransferHooks hooks;
  TakeChecksums take_checksums;  // Null: nobody takes some.
  std::vector<Shard> shards;     // Those that are read, by rank.
  plan::Plan plan;
  bool is_counted = true;  // False: what comes is read again.
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

Status make_plan(PieceReading& reading, const FoundPieces& found) {
  CKPT_TRY(const plan::PieceIndex index, found.index());
  const std::vector<plan::Holder> holders(reading.source.shard_count());
  std::vector<plan::Want> wants;
  for (const WantedPiece& wanted : reading.wants.pieces) wants.push_back(wanted.want);
  auto plan = plan::make_plan(index, wants, {holders, reading.reader.rank});
  if (!plan) {
    // Never not_found: to a trainer it would mean that there is nothing to restore.
    const Errc code =
        plan.error().code() == Errc::not_found ? Errc::invalid_argument : plan.error().code();
    return fail(Error(code, plan.error().message()));
  }
  if (!plan->gaps.empty())
    return fail(Errc::invalid_argument,
                fmt::format("no rank has saved {}", text_of(plan->gaps, wants)));
  reading.plan = std::move(plan).value();
  return {};
}

// Gives each shard that is read the reasons to read some of its Chunks, and keeps its record.
void divide_work(PieceReading& reading, const FoundPieces& found) {
  CKPT_ASSERT(reading.shards.empty());
  std::set<std::uint32_t> ranks;
  for (const plan::Transfer& transfer : reading.plan.transfers) ranks.insert(transfer.holder);
  for (const WantedBytes& wanted : reading.wants.bytes) ranks.insert(wanted.rank);
  const bool keeps_checksums = reading.take_checksums != nullptr;
  const ShardPlaces::Facts facts{reading.plan, reading.wants, keeps_checksums};
  for (const std::uint32_t rank : ranks) {
    Shard& shard = reading.shards.emplace_back();
    shard.rank = rank;
    shard.record = found.record(rank);
    CKPT_ASSERT(shard.record != nullptr);
    shard.places.emplace(shard.record, facts);
  }
  const auto places_in = [&](std::uint32_t rank) -> ShardPlaces& {
    return *std::ranges::lower_bound(reading.shards, rank, {}, &Shard::rank)->places;
  };
  for (std::uint32_t number = 0; number < reading.plan.transfers.size(); ++number)
    places_in(reading.plan.transfers[number].holder).want_transfer(number);
  for (std::uint32_t number = 0; number < reading.wants.bytes.size(); ++number)
    places_in(reading.wants.bytes[number].rank).want_bytes(number);
  for (Shard& shard : reading.shards) shard.unread = shard.places->chunks();
}

Task<void> read_shard_of(PieceReading& reading, std::size_t number) {
  Shard& shard = reading.shards[number];
  if (shard.unread.empty()) co_return Status();
  ShardPlaces& places = *shard.places;
  std::vector<std::size_t> chunks = std::exchange(shard.unread, {});
  ChunkSink sink;
  sink.take = [&](std::size_t index, std::span<const std::byte> bytes) {
    if (!bytes.empty()) places.copy(index, bytes);
    const std::uint64_t came = reading.is_counted ? places.wanted_bytes(index) : 0;
    if (reading.hooks.verified) reading.hooks.verified(came);
  };
  sink.copy = [&](std::size_t index, std::span<const std::byte> bytes) {
    places.copy(index, bytes);
  };
  sink.places = [&](std::size_t index) { return places.places_of(index); };
  auto read =
      co_await reading.source.read(shard.record, std::move(chunks), std::move(sink), reading.hooks);
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

// Finds the Chunks that have to come again.
Task<void> check_all(PieceReading& reading) {
  std::vector<ChunkOfShard> all;
  for (std::size_t shard = 0; shard < reading.shards.size(); ++shard) {
    CKPT_ASSERT(reading.shards[shard].unread.empty());
    for (const std::size_t chunk : reading.shards[shard].places->chunks())
      all.push_back({shard, chunk});
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
  const std::uint32_t count = reading.source.shard_count();
  FoundPieces found(reading.wants, reading.reader, count);
  std::function<Task<void>(std::size_t)> look = [&](std::size_t rank) {
    return look_at(reading.source, found, static_cast<std::uint32_t>(rank));
  };
  CKPT_CO_CHECK(co_await storage::for_each_parallel(count, looks_in_flight, std::move(look)));
  CKPT_CO_CHECK(make_plan(reading, found));
  divide_work(reading, found);
  co_return Status();
}

}  // namespace

Task<void> check_pieces(ShardSource& source, ReaderRank reader, std::vector<WantedPiece> pieces) {
  PieceReading reading{source, reader, Wants{std::move(pieces), {}}, {}, {}};
  auto planned = co_await look_and_plan(reading);
  co_return planned;
}

Task<void> read_pieces(ShardSource& source, ReaderRank reader, Wants wants,
                       storage::TransferHooks hooks) {
  PieceReading reading{source, reader, std::move(wants), std::move(hooks), {}};
  CKPT_CO_CHECK(co_await look_and_plan(reading));
  auto read = co_await read_unread(reading);
  co_return read;
}

Task<void> read_pieces(ShardSource& source, ReaderRank reader, Wants wants,
                       storage::TransferHooks hooks, TakeChecksums take_checksums) {
  CKPT_ASSERT(take_checksums != nullptr);
  PieceReading reading{source, reader, std::move(wants), std::move(hooks),
                       std::move(take_checksums)};
  CKPT_CO_CHECK(co_await look_and_plan(reading));
  std::string changed;
  for (int reads = 0; reads < reads_max; ++reads) {
    CKPT_CO_CHECK(co_await read_unread(reading));
    // In this order: what changes before the check is found by it, what changes later does not
    // match these checksums.
    CKPT_CO_CHECK(co_await reading.take_checksums());
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
