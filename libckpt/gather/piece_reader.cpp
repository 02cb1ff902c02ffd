#include "gather/piece_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/assert.hpp"
#include "base/units.hpp"
#include "format/piece.hpp"
#include "storage/parallel.hpp"

namespace ckpt::gather {

namespace {

using format::Extent;

// Descriptions are small, and many shards may have no wanted name.
constexpr std::size_t looks_in_flight = 16;
constexpr std::size_t shards_in_flight = 4;
constexpr std::size_t gaps_named_max = 5;
// A Chunk whose bytes go to more places is copied there: many small reads cost more than a copy.
constexpr std::size_t places_max = 8;

// The reasons to read a Chunk of a shard: numbers of transfers, and of wanted bytes.
struct ChunkWork {
  std::vector<std::uint32_t> transfers;
  std::vector<std::uint32_t> bytes;
};

struct Shard {
  std::uint32_t rank = 0;
  Excerpt found;
  std::map<std::size_t, ChunkWork> work;  // By Chunk.
};

// Lives in the frame that waits for all its workers.
struct Reading {
  ShardSource& source;
  ReaderRank reader;
  Wants wants;
  storage::TransferHooks hooks;
  std::vector<std::string> names;                // The wanted ones, ascending.
  std::map<std::string, std::string> tensor_of;  // By the name of a part.
  std::vector<Shard> shards;                     // By rank.
  plan::Plan plan;
};

Task<void> look_at(Reading& reading, std::size_t rank) {
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

Status check_readable(const Reading& reading, const Several& several) {
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
Status check_shared(const Reading& reading) {
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

Result<plan::PieceIndex> index_of(const Reading& reading) {
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

Status make_plan(Reading& reading) {
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

// Gives each Chunk what needs bytes of it.
void divide_work(Reading& reading) {
  for (std::uint32_t number = 0; number < reading.plan.transfers.size(); ++number) {
    const plan::Transfer& transfer = reading.plan.transfers[number];
    const plan::RunsInside runs(transfer);
    Shard& shard = reading.shards[transfer.holder];
    const std::uint64_t size = shard.found.record->chunk_bytes;
    for (std::size_t index = transfer.from / size; index * size < transfer.from_end(); ++index) {
      if (runs.has_any(index * size, (index + 1) * size))
        shard.work[index].transfers.push_back(number);
    }
  }
  for (std::uint32_t number = 0; number < reading.wants.bytes.size(); ++number) {
    const WantedBytes& wanted = reading.wants.bytes[number];
    Shard& shard = reading.shards.at(wanted.rank);
    const std::uint64_t size = shard.found.record->chunk_bytes;
    const std::uint64_t end = wanted.offset + wanted.target.size();
    for (std::size_t index = wanted.offset / size; index * size < end; ++index)
      shard.work[index].bytes.push_back(number);
  }
}

// Calls use(bytes of the target, their offset in the shard) for all that is wanted of a Chunk.
template <class Use>
void for_each_place(Reading& reading, const ChunkWork& work, Extent chunk, const Use& use) {
  const auto use_stretch = [&](std::span<std::byte> target, const plan::TransferStretch& stretch) {
    CKPT_ASSERT(stretch.to + stretch.bytes <= target.size());
    CKPT_ASSERT(stretch.from >= chunk.offset);
    CKPT_ASSERT(stretch.from + stretch.bytes <= chunk.end());
    use(target.subspan(stretch.to, stretch.bytes), stretch.from);
  };
  for (const std::uint32_t number : work.transfers) {
    const plan::Transfer& transfer = reading.plan.transfers[number];
    const std::span<std::byte> target = reading.wants.pieces[transfer.want].target;
    plan::RunsInside(transfer).for_each(
        chunk.offset, chunk.end(),
        [&](const plan::TransferStretch& stretch) { use_stretch(target, stretch); });
  }
  for (const std::uint32_t number : work.bytes) {
    const WantedBytes& wanted = reading.wants.bytes[number];
    const std::uint64_t from = std::max(chunk.offset, wanted.offset);
    const std::uint64_t to = std::min(chunk.end(), wanted.offset + wanted.target.size());
    use_stretch(wanted.target, {from, from - wanted.offset, to - from});
  }
}

// Copies what is wanted of a Chunk; empty `bytes`: it is there already. Returns how much it was.
std::uint64_t copy_from(Reading& reading, const ChunkWork& work, Extent chunk,
                        std::span<const std::byte> bytes) {
  CKPT_ASSERT(bytes.empty() || bytes.size() == chunk.bytes);
  std::uint64_t copied = 0;
  for_each_place(reading, work, chunk, [&](std::span<std::byte> target, std::uint64_t from) {
    if (!bytes.empty())
      std::memcpy(target.data(), bytes.data() + (from - chunk.offset), target.size());
    copied += target.size();
  });
  return copied;
}

// The places of all bytes of a Chunk; empty: some are not wanted, or twice, or they are many.
std::vector<std::span<std::byte>> places_of(Reading& reading, const ChunkWork& work, Extent chunk) {
  std::map<std::uint64_t, std::span<std::byte>> found;  // By offset in the shard.
  std::uint64_t bytes = 0;
  for_each_place(reading, work, chunk, [&](std::span<std::byte> target, std::uint64_t from) {
    bytes += target.size();
    if (found.size() <= places_max && !target.empty()) found.emplace(from, target);
  });
  if (bytes != chunk.bytes || found.size() > places_max) return {};
  std::vector<std::span<std::byte>> places;
  std::uint64_t next = chunk.offset;
  for (const auto& [from, target] : found) {
    if (from != next) return {};
    next += target.size();
    places.push_back(target);
  }
  return next == chunk.end() ? places : std::vector<std::span<std::byte>>();
}

Task<void> read_shard_of(Reading& reading, std::size_t rank) {
  Shard& shard = reading.shards[rank];
  if (shard.work.empty()) co_return Status();
  std::vector<std::size_t> chunks;
  for (const auto& [index, work] : shard.work) chunks.push_back(index);
  ChunkSink sink;
  sink.take = [&](std::size_t index, std::span<const std::byte> bytes) {
    const Extent chunk = shard.found.record->chunk(index);
    const std::uint64_t copied = copy_from(reading, shard.work.at(index), chunk, bytes);
    if (reading.hooks.verified) reading.hooks.verified(copied);
  };
  sink.copy = [&](std::size_t index, std::span<const std::byte> bytes) {
    (void)copy_from(reading, shard.work.at(index), shard.found.record->chunk(index), bytes);
  };
  sink.places = [&](std::size_t index) {
    return places_of(reading, shard.work.at(index), shard.found.record->chunk(index));
  };
  auto read = co_await reading.source.read(shard.found.record, std::move(chunks), std::move(sink),
                                           reading.hooks);
  co_return read;
}

// `reading` lives until the Task ends.
Task<void> look_and_plan(Reading& reading) {
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
  Reading reading{source, reader, Wants{std::move(pieces), {}}, {}};
  auto planned = co_await look_and_plan(reading);
  co_return planned;
}

Task<void> read_pieces(ShardSource& source, ReaderRank reader, Wants wants,
                       storage::TransferHooks hooks) {
  Reading reading{source, reader, std::move(wants), std::move(hooks)};
  CKPT_CO_CHECK(co_await look_and_plan(reading));
  divide_work(reading);
  std::function<Task<void>(std::size_t)> fill_from = [&](std::size_t index) {
    return read_shard_of(reading, index);
  };
  CKPT_CO_CHECK(co_await storage::for_each_parallel(reading.shards.size(), shards_in_flight,
                                                    std::move(fill_from)));
  co_return Status();
}

}  // namespace ckpt::gather
