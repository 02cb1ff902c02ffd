#include "gather/piece_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/assert.hpp"
#include "base/units.hpp"
#include "format/piece.hpp"
#include "storage/page_buffer.hpp"
#include "storage/parallel.hpp"
#include "storage/part_reader.hpp"
#include "storage/shard_files.hpp"

namespace ckpt::gather {

namespace {

// Parts are small, and many shards may have no wanted name.
constexpr std::size_t parts_in_flight = 16;
// Shards at a time, and Chunks of each: 64 MiB of memory.
constexpr std::size_t shards_in_flight = 4;
constexpr std::size_t chunks_in_flight = 4;
constexpr std::size_t gaps_named_max = 5;

// What a Chunk of a shard is read for.
struct ChunkWork {
  std::size_t index = 0;
  std::vector<std::uint32_t> transfers;
};

struct Shard {
  std::uint32_t rank = 0;
  std::shared_ptr<const format::ShardRecord> record;  // Without tensors.
  std::vector<format::TensorPlace> tensors;           // Those of wanted names.
  std::vector<ChunkWork> work;
};

// Lives in the frame that waits for all its workers.
struct Reading {
  os::FileSystem& files;
  std::string directory;
  std::shared_ptr<const format::Manifest> manifest;
  Reader reader;
  std::vector<WantedPiece> wants;
  storage::TransferHooks hooks;
  std::vector<std::string> names;  // The wanted ones, ascending.
  std::vector<Shard> shards;       // By rank.
  plan::Plan plan;
};

Task<void> read_part_of(Reading& reading, std::size_t rank) {
  Shard& shard = reading.shards[rank];
  shard.rank = static_cast<std::uint32_t>(rank);
  CKPT_CO_TRY(auto found,
              co_await storage::find_tensors(reading.files, reading.directory, reading.manifest,
                                             shard.rank, reading.names));
  shard.record = std::make_shared<const format::ShardRecord>(std::move(found.front.record));
  for (format::PartEntry& entry : found.entries) shard.tensors.push_back(std::move(entry.tensor));
  co_return Status();
}

// The names that several shards have as a whole tensor, and the ranks of the first two.
using Several = std::map<std::string_view, std::pair<std::uint32_t, std::uint32_t>>;
Several whole_in_several(std::span<const Shard> shards) {
  std::map<std::string_view, std::uint32_t> first;
  Several several;
  for (const Shard& shard : shards) {
    for (const format::TensorPlace& tensor : shard.tensors) {
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

// What is one memory here cannot hold two different tensors.
Status check_shared(const Reading& reading) {
  std::map<std::string_view, std::string_view> wanted;  // By each other name.
  for (const WantedPiece& each : reading.wants)
    for (const std::string& name : each.also) wanted.emplace(name, each.want.name);
  if (wanted.empty()) return {};
  for (const Shard& shard : reading.shards) {
    for (const format::TensorPlace& tensor : shard.tensors) {
      const auto other = wanted.find(tensor.name);
      if (other == wanted.end() || tensor.extent.bytes == 0) continue;
      const auto same = std::ranges::find_if(shard.tensors, [&](const auto& each) {
        return each.name == other->second &&
               (each.alias_of == tensor.name || tensor.alias_of == each.name);
      });
      if (same == shard.tensors.end())
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
    for (const format::TensorPlace& tensor : shard.tensors) {
      const bool is_of_one_rank = !tensor.piece && several.contains(tensor.name);
      if (is_of_one_rank && shard.rank != reading.reader.rank) continue;
      const std::vector<std::uint64_t> shape = format::global_shape_of(tensor.piece, tensor.shape);
      plan::Piece piece;
      piece.name = tensor.name;
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
  for (const WantedPiece& wanted : reading.wants) wants.push_back(wanted.want);
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

// Gives each Chunk the transfers that need bytes of it.
void divide_work(Reading& reading) {
  std::vector<std::map<std::size_t, std::vector<std::uint32_t>>> by_chunk(reading.shards.size());
  for (std::uint32_t number = 0; number < reading.plan.transfers.size(); ++number) {
    const plan::Transfer& transfer = reading.plan.transfers[number];
    const plan::RunsInside runs(transfer);
    const std::uint64_t chunk_bytes = reading.shards[transfer.holder].record->chunk_bytes;
    for (std::size_t index = transfer.from / chunk_bytes; index * chunk_bytes < transfer.from_end();
         ++index) {
      if (runs.has_any(index * chunk_bytes, (index + 1) * chunk_bytes))
        by_chunk[transfer.holder][index].push_back(number);
    }
  }
  for (Shard& shard : reading.shards) {
    for (auto& [index, transfers] : by_chunk[shard.rank])
      shard.work.push_back({index, std::move(transfers)});
  }
}

Task<void> copy_chunk(Reading& reading, storage::ShardFiles& files, const ChunkWork& work) {
  const format::Extent chunk = files.record().chunk(work.index);
  storage::PageBuffer buffer(chunk.bytes);
  const std::span<std::byte> bytes = buffer.first(chunk.bytes);
  CKPT_CO_CHECK(co_await files.read_chunk(work.index, bytes, reading.hooks));
  std::uint64_t copied = 0;
  for (const std::uint32_t number : work.transfers) {
    const plan::Transfer& transfer = reading.plan.transfers[number];
    const std::span<std::byte> target = reading.wants[transfer.want].target;
    const auto copy = [&](const plan::Stretch& stretch) {
      CKPT_ASSERT(stretch.to + stretch.bytes <= target.size());
      std::memcpy(target.data() + stretch.to, bytes.data() + (stretch.from - chunk.offset),
                  stretch.bytes);
      copied += stretch.bytes;
    };
    plan::RunsInside(transfer).for_each(chunk.offset, chunk.end(), copy);
  }
  if (reading.hooks.verified) reading.hooks.verified(copied);
  co_return Status();
}

Task<void> read_shard_of(Reading& reading, std::size_t rank) {
  const Shard& shard = reading.shards[rank];
  if (shard.work.empty()) co_return Status();
  CKPT_CO_TRY(const auto files,
              co_await storage::ShardFiles::open(reading.files, reading.directory, shard.record));
  std::function<Task<void>(std::size_t)> work = [&](std::size_t index) {
    return copy_chunk(reading, *files, shard.work[index]);
  };
  CKPT_CO_CHECK(
      co_await storage::for_each_parallel(shard.work.size(), chunks_in_flight, std::move(work)));
  (void)co_await files->close();  // Every Chunk was verified: a failure changes nothing.
  co_return Status();
}

}  // namespace

Task<void> read_pieces(os::FileSystem& files, std::string step_directory,
                       std::shared_ptr<const format::Manifest> manifest, Reader reader,
                       std::vector<WantedPiece> wants, storage::TransferHooks hooks) {
  Reading reading{files,  std::move(step_directory), std::move(manifest),
                  reader, std::move(wants),          std::move(hooks)};
  for (const WantedPiece& wanted : reading.wants) {
    reading.names.push_back(wanted.want.name);
    reading.names.insert(reading.names.end(), wanted.also.begin(), wanted.also.end());
  }
  std::ranges::sort(reading.names);
  reading.names.erase(std::ranges::unique(reading.names).begin(), reading.names.end());
  reading.shards.resize(reading.manifest->shards.size());
  std::function<Task<void>(std::size_t)> read_one = [&](std::size_t index) {
    return read_part_of(reading, index);
  };
  CKPT_CO_CHECK(co_await storage::for_each_parallel(reading.shards.size(), parts_in_flight,
                                                    std::move(read_one)));
  CKPT_CO_CHECK(make_plan(reading));
  divide_work(reading);
  std::function<Task<void>(std::size_t)> fill_from = [&](std::size_t index) {
    return read_shard_of(reading, index);
  };
  CKPT_CO_CHECK(co_await storage::for_each_parallel(reading.shards.size(), shards_in_flight,
                                                    std::move(fill_from)));
  co_return Status();
}

}  // namespace ckpt::gather
