#include "gather/piece_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "format/piece.hpp"
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

struct Shard {
  std::uint32_t rank = 0;
  Excerpt found;
  std::optional<ShardPlaces> places;
  std::vector<std::size_t> unread;  // Chunks, ascending.
};

// Lives in the frame that waits for all its workers.
struct PieceReading {
  ShardSource& source;
  ReaderRank reader;
  Wants wants;
  storage::TransferHooks hooks;
  TakeChecksums take_checksums;                  // Null: nobody takes some.
  std::vector<std::string> names;                // The wanted ones, ascending.
  std::map<std::string, std::string> tensor_of;  // By the name of a part.
  std::vector<Shard> shards;                     // By rank.
  plan::Plan plan;
  bool is_counted = true;  // False: what comes is read again.
};

Task<void> look_at(PieceReading& reading, std::size_t rank) {
  Shard& shard = reading.shards[rank];
  shard.rank = static_cast<std::uint32_t>(rank);
  std::vector<std::string> names = reading.names;
  CKPT_CO_TRY(shard.found, co_await reading.source.look(shard.rank, std::move(names)));
  co_return Status();
}

// The names that several shards have as a whole tensor, and the ranks of the first two.
using Several = std::map<std::string_view, std::pair<std::uint32_t, std::uint32_t>>;
Several whole_in_several(std::span<const Shard> shards) {
  std::map<std::string_view, std::uint32_t> first;
  Several several;
  for (const Shard& shard : shards) {
    for (const format::TensorPlace& tensor : shard.found.tensors) {
      if (tensor.piece || tensor.extent.bytes == 0) continue;
      const auto [found, is_first] = first.emplace(tensor.name, shard.rank);
      if (!is_first) several.emplace(tensor.name, std::pair(found->second, shard.rank));
    }
  }
  return several;
}

Status check_readable(const PieceReading& reading, const Several& several) {
  const std::size_t saved_by = reading.shards.size();
  if (several.empty() || reading.reader.world_size == saved_by) return {};
  const auto& [name, ranks] = *several.begin();
  return fail(Errc::unsupported,
              fmt::format("tensor \"{}\" was saved whole by rank {} and rank {} of {}, and there "
                          "are {} ranks now: nothing says whether these are copies, or which rank "
                          "goes on with which; save copies as pieces with a number each",
                          name, ranks.first, ranks.second, saved_by, reading.reader.world_size));
}

// One memory here cannot hold two different tensors.
Status check_shared(const PieceReading& reading) {
  std::map<std::string_view, std::string_view> wanted;  // By each other name.
  for (const WantedPiece& each : reading.wants.pieces)
    for (const std::string& name : each.also) wanted.emplace(name, each.want.name);
  if (wanted.empty()) return {};
  for (const Shard& shard : reading.shards) {
    for (const format::TensorPlace& tensor : shard.found.tensors) {
      const auto other = wanted.find(tensor.name);
      if (other == wanted.end() || tensor.extent.bytes == 0) continue;
      const auto same = std::ranges::find_if(shard.found.tensors, [&](const auto& each) {
        return each.name == other->second &&
               (each.alias_of == tensor.name || tensor.alias_of == each.name);
      });
      if (same == shard.found.tensors.end())
        return fail(Errc::invalid_argument,
                    fmt::format("tensors \"{}\" and \"{}\" share memory here, and differ in what "
                                "rank {} saved",
                                other->second, tensor.name, shard.rank));
    }
  }
  return {};
}

Result<plan::PieceIndex> index_of(const PieceReading& reading) {
  const Several several = whole_in_several(reading.shards);
  CKPT_CHECK(check_readable(reading, several));
  plan::PieceIndex index;
  for (const Shard& shard : reading.shards) {
    for (const format::TensorPlace& tensor : shard.found.tensors) {
      const bool is_of_one_rank = !tensor.piece && several.contains(tensor.name);
      if (is_of_one_rank && shard.rank != reading.reader.rank) continue;
      const std::vector<std::uint64_t> shape = format::global_shape_of(tensor.piece, tensor.shape);
      plan::HeldPiece piece;
      const auto named = reading.tensor_of.find(tensor.name);
      piece.name = named == reading.tensor_of.end() ? tensor.name : named->second;
      piece.dtype = tensor.dtype;
      piece.shape = shape;
      piece.region = format::region_of(tensor.piece, tensor.shape);
      if (tensor.piece) piece.order = tensor.piece->order;
      piece.holder = shard.rank;
      piece.offset = tensor.extent.offset;
      CKPT_CHECK(index.add(piece));
    }
  }
  index.finish();
  return index;
}

std::string text_of(std::span<const plan::Gap> gaps, std::span<const plan::Want> wants) {
  std::string text;
  for (const plan::Gap& gap : gaps.first(std::min(gaps.size(), gaps_named_max)))
    text += (text.empty() ? "" : ", ") + plan::describe(gap, wants);
  if (gaps.size() > gaps_named_max)
    text += fmt::format(" and {} more", gaps.size() - gaps_named_max);
  return text;
}

Status make_plan(PieceReading& reading) {
  CKPT_CHECK(check_shared(reading));
  CKPT_TRY(const plan::PieceIndex index, index_of(reading));
  const std::vector<plan::Holder> holders(reading.shards.size());
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

// Gives each shard the reasons to read some of its Chunks.
void divide_work(PieceReading& reading) {
  const bool keeps_checksums = reading.take_checksums != nullptr;
  for (Shard& shard : reading.shards)
    shard.places.emplace(shard.found.record,
                         ShardPlaces::Facts{reading.plan, reading.wants, keeps_checksums});
  for (std::uint32_t number = 0; number < reading.plan.transfers.size(); ++number)
    reading.shards[reading.plan.transfers[number].holder].places->want_transfer(number);
  for (std::uint32_t number = 0; number < reading.wants.bytes.size(); ++number)
    reading.shards.at(reading.wants.bytes[number].rank).places->want_bytes(number);
  for (Shard& shard : reading.shards) shard.unread = shard.places->chunks();
}

Task<void> read_shard_of(PieceReading& reading, std::size_t rank) {
  Shard& shard = reading.shards[rank];
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
  auto read = co_await reading.source.read(shard.found.record, std::move(chunks), std::move(sink),
                                           reading.hooks);
  co_return read;
}

// `reading` lives until the Task ends.
Task<void> read_unread(PieceReading& reading) {
  std::function<Task<void>(std::size_t)> read_from = [&](std::size_t rank) {
    return read_shard_of(reading, rank);
  };
  auto read = co_await storage::for_each_parallel(reading.shards.size(), shards_in_flight,
                                                  std::move(read_from));
  co_return read;
}

struct ChunkOfShard {
  std::size_t rank = 0;
  std::size_t chunk = 0;
};

// Sorts it among the unread ones if it does not lie there any more.
Task<void> check_chunk(PieceReading& reading, ChunkOfShard it) {
  Shard& shard = reading.shards[it.rank];
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
  for (std::size_t rank = 0; rank < reading.shards.size(); ++rank) {
    CKPT_ASSERT(reading.shards[rank].unread.empty());
    for (const std::size_t chunk : reading.shards[rank].places->chunks())
      all.push_back({rank, chunk});
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
  for (const WantedPiece& wanted : reading.wants.pieces) {
    reading.names.push_back(wanted.want.name);
    reading.names.insert(reading.names.end(), wanted.also.begin(), wanted.also.end());
    for (const std::string& part : wanted.part_names) {
      reading.names.push_back(part);
      reading.tensor_of.emplace(part, wanted.want.name);
    }
  }
  std::ranges::sort(reading.names);
  reading.names.erase(std::ranges::unique(reading.names).begin(), reading.names.end());
  reading.shards.resize(reading.source.shard_count());
  std::function<Task<void>(std::size_t)> look = [&](std::size_t index) {
    return look_at(reading, index);
  };
  CKPT_CO_CHECK(
      co_await storage::for_each_parallel(reading.shards.size(), looks_in_flight, std::move(look)));
  co_return make_plan(reading);
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
  divide_work(reading);
  auto read = co_await read_unread(reading);
  co_return read;
}

Task<void> read_pieces(ShardSource& source, ReaderRank reader, Wants wants,
                       storage::TransferHooks hooks, TakeChecksums take_checksums) {
  CKPT_ASSERT(take_checksums != nullptr);
  PieceReading reading{source, reader, std::move(wants), std::move(hooks),
                       std::move(take_checksums)};
  CKPT_CO_CHECK(co_await look_and_plan(reading));
  divide_work(reading);
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
