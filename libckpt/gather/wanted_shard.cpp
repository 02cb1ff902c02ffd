#include "gather/wanted_shard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ckpt/framework.hpp>
#include <set>

#include "base/assert.hpp"
#include "base/compute.hpp"
#include "base/units.hpp"
#include "format/piece.hpp"
#include "storage/parallel.hpp"

namespace ckpt::gather {

namespace {

constexpr std::size_t hashes_in_flight = 4;  // As many threads may take checksums.

using format::Extent;
using format::ShardRecord;

// The blobs as they lie in the Slot, one after another.
Extent blob_extent(const ShardRecord& record) {
  const auto member = format::blob_member(record.layout);
  return {member ? record.layout.members[*member].extent.offset : 0, record.blob_bytes};
}

// Gives `record` the blobs of `source`, in the place that its own layout has for them.
void take_blobs(const ShardRecord& source, ShardRecord& record) {
  record.blob_bytes = source.blob_bytes;
  record.blob_names = source.blob_names;
  record.blobs = source.blobs;
  const std::uint64_t from = blob_extent(source).offset;
  const std::uint64_t to = blob_extent(record).offset;
  for (Extent& blob : record.blobs) {
    CKPT_ASSERT(blob.offset >= from);
    blob.offset = blob.offset - from + to;
  }
}

// The pieces of `layout`, and its tensors that are not taken as a shard has them.
std::vector<WantedPiece> pieces_of(const ShapedShard& shaped, std::span<std::byte> target) {
  const format::Layout& layout = shaped.record.layout;
  std::vector<WantedPiece> wants;
  std::map<std::string_view, std::vector<std::string>> others;  // By the name that they share.
  for (const format::TensorPlace& tensor : layout.tensors)
    if (!tensor.alias_of.empty()) others[tensor.alias_of].push_back(tensor.name);
  for (const format::TensorPlace& tensor : layout.tensors) {
    if (!tensor.alias_of.empty() || shaped.whole_tensors.contains(tensor.name)) continue;
    WantedPiece wanted;
    wanted.want.name = format::tensor_name_of(tensor.name, tensor.piece, tensor.shape);
    wanted.want.dtype = tensor.dtype;
    wanted.want.shape = format::global_shape_of(tensor.piece, tensor.shape);
    wanted.want.region = format::region_of(tensor.piece, tensor.shape);
    if (tensor.piece) wanted.want.order = tensor.piece->order;
    wanted.target = target.subspan(tensor.extent.offset, tensor.extent.bytes);
    if (const auto also = others.find(tensor.name); also != others.end())
      wanted.also = std::move(also->second);
    wants.push_back(std::move(wanted));
  }
  return wants;
}

std::vector<WantedBytes> bytes_of(const ShapedShard& shaped, std::span<std::byte> target) {
  std::vector<WantedBytes> wants;
  const auto add = [&](const ShapedShard::Location& place, const Extent& to) {
    if (to.bytes > 0)
      wants.push_back({place.rank, place.offset, target.subspan(to.offset, to.bytes)});
  };
  add(shaped.blobs, blob_extent(shaped.record));
  for (const format::TensorPlace& tensor : shaped.record.layout.tensors) {
    const auto whole = shaped.whole_tensors.find(tensor.name);
    if (whole != shaped.whole_tensors.end() && tensor.alias_of.empty())
      add(whole->second, tensor.extent);
  }
  return wants;
}

// Adds the whole tensors of a shard, with `prefix` before their names; not those that are wanted as
// pieces.
void join(const ShardRecord& source, const std::string& prefix, const std::set<std::string>& wanted,
          std::vector<format::TensorSpec>& specs, ShapedShard& shaped) {
  for (const format::TensorPlace& tensor : source.layout.tensors) {
    if (tensor.piece || wanted.contains(tensor.name)) continue;
    const std::string name = prefix + tensor.name;
    specs.push_back({name, tensor.dtype, tensor.shape,
                     tensor.alias_of.empty() ? "" : prefix + tensor.alias_of, /*archive=*/"",
                     /*piece=*/std::nullopt});
    shaped.whole_tensors[name] = {source.id.rank, tensor.extent.offset};
  }
}

// Adds an empty part of each larger tensor of these shards that is not wanted: so the reader hears
// of it.
void join_names(std::span<const std::shared_ptr<const ShardRecord>> sources,
                std::vector<format::TensorSpec>& specs, ShapedShard& shaped) {
  std::set<std::string, std::less<>> known;
  for (const format::TensorSpec& tensor : specs)
    known.emplace(format::tensor_name_of(tensor.name, tensor.piece, tensor.shape));
  for (const std::shared_ptr<const ShardRecord>& source : sources) {
    for (const format::TensorPlace& tensor : source->layout.tensors) {
      const auto name = format::tensor_name_of(tensor.name, tensor.piece, tensor.shape);
      if (!tensor.piece || !known.emplace(name).second) continue;
      Piece none;
      none.global_shape = tensor.piece->global_shape;
      none.flat_begin = 0;
      specs.push_back({std::string(name), tensor.dtype, /*shape=*/{0}, /*alias_of=*/"",
                       /*archive=*/"", std::move(none)});
      shaped.whole_tensors[std::string(name)] = {source->id.rank, 0};
    }
  }
}

// The shards whose whole tensors the reader gets, whatever it wants.
bool is_joined(const ShardSource& source, const ReaderRank& reader, std::uint32_t shard) {
  if (shard == rank_of_blobs(source, reader)) return true;
  return shard >= reader.rank && (shard - reader.rank) % reader.world_size == 0;
}

// The shards that have a name: as much of them as matters here.
struct Holders {
  std::uint32_t first = 0;  // Of one that is the only one.
  bool are_several = false;
};

// The parts of the wanted names that shards have. Shards may come in any order.
struct SeenPieces {
  std::vector<std::string> names;  // They ascend.
  std::set<std::string> divided;   // Those that are a piece in some shard.
  std::map<std::string, Holders, std::less<>> holders;
};

// `seen` lives until the Task ends.
Task<void> look_for_pieces(ShardSource& source, SeenPieces& seen, std::uint32_t rank) {
  std::vector<std::string> asked = seen.names;
  CKPT_CO_TRY(const Excerpt found, co_await source.look(rank, std::move(asked)));
  for (const format::TensorPlace& tensor : found.tensors) {
    const std::string name(format::tensor_name_of(tensor.name, tensor.piece, tensor.shape));
    if (tensor.piece) seen.divided.insert(name);
    Holders& known = seen.holders.try_emplace(name, Holders{rank}).first->second;
    known.are_several = known.are_several || known.first != rank;
  }
  co_return Status();
}

// Leaves of `wanted` what is a piece in some shard, or is one here of a tensor that some shard has:
// who wants all of a tensor may be the only one who has no piece of it. So stays a whole tensor
// that a single shard has, if that is not joined: it is the same piece there and here. The
// reader reports the tensors that no shard has.
Task<void> keep_pieces(ShardSource& source, ReaderRank reader,
                       std::vector<format::TensorSpec>& wanted) {
  SeenPieces seen;
  for (const format::TensorSpec& tensor : wanted)
    seen.names.emplace_back(format::tensor_name_of(tensor.name, tensor.piece, tensor.shape));
  std::ranges::sort(seen.names);
  seen.names.erase(std::ranges::unique(seen.names).begin(), seen.names.end());
  std::function<Task<void>(std::size_t)> look = [&](std::size_t rank) {
    return look_for_pieces(source, seen, static_cast<std::uint32_t>(rank));
  };
  CKPT_CO_CHECK(
      co_await storage::for_each_parallel(source.shard_count(), looks_in_flight, std::move(look)));
  const std::set<std::string>& divided = seen.divided;
  const auto& holders = seen.holders;
  const auto is_kept = [&](const format::TensorSpec& tensor) {
    const auto there =
        holders.find(format::tensor_name_of(tensor.name, tensor.piece, tensor.shape));
    if (there == holders.end()) return false;
    if (tensor.piece || divided.contains(tensor.name)) return true;
    const Holders& own = there->second;
    return !own.are_several && !is_joined(source, reader, own.first) && tensor.alias_of.empty();
  };
  std::map<std::string, std::string> heirs;  // For each memory, the first name that is kept.
  for (const format::TensorSpec& tensor : wanted)
    if (tensor.alias_of.empty() && is_kept(tensor)) heirs.emplace(tensor.name, tensor.name);
  for (format::TensorSpec& tensor : wanted) {
    if (tensor.alias_of.empty() || !is_kept(tensor)) continue;
    const auto [heir, is_first] = heirs.emplace(tensor.alias_of, tensor.name);
    tensor.alias_of = is_first ? "" : heir->second;
  }
  std::erase_if(wanted, [&](const format::TensorSpec& tensor) { return !is_kept(tensor); });
  co_return Status();
}

// The checksum of a Chunk. Memory is read only where no sum is known: a header, gaps between
// tensors, short runs.
Crc32 checksum_of(std::span<const std::byte> chunk, std::span<const RunSum> known) {
  const std::byte* at = chunk.data();
  const std::byte* const end = at + chunk.size();
  auto run = std::ranges::lower_bound(known, at, {}, &RunSum::begin);
  Crc32 crc = 0;
  while (at != end) {
    if (run != known.end() && run->begin == at) {
      CKPT_ASSERT(run->bytes <= static_cast<std::uint64_t>(end - at));
      crc = crc32_combine(crc, run->crc, run->bytes);
      at += run->bytes;
      ++run;
      continue;
    }
    const std::byte* const next = run == known.end() ? end : std::min(run->begin, end);
    CKPT_ASSERT(next > at);  // No byte comes twice.
    crc = crc32(std::span(at, next), crc);
    at = next;
  }
  return crc;
}

// The references live until all Chunks are hashed.
Task<void> hash_chunk(ShardRecord& record, std::size_t index, std::span<std::byte> target,
                      std::span<const RunSum> known, Compute* compute) {
  const Extent extent = record.chunk(index);
  const auto chunk = target.subspan(extent.offset, extent.bytes);
  std::function<void()> hash = [&record, known, index, chunk] {
    record.chunk_crcs[index] = checksum_of(chunk, known);
  };
  auto hashed = co_await run_on(compute, std::move(hash));
  co_return hashed;
}

Task<void> hash_chunks(ShardRecord& record, std::span<std::byte> target, std::vector<RunSum> known,
                       Compute* compute) {
  std::function<Task<void>(std::size_t)> hash = [&](std::size_t index) {
    return hash_chunk(record, index, target, known, compute);
  };
  auto hashed = co_await storage::for_each_parallel(record.chunk_crcs.size(), hashes_in_flight,
                                                    std::move(hash));
  co_return hashed;
}

}  // namespace

std::uint32_t rank_of_blobs(const ShardSource& source, const ReaderRank& reader) {
  CKPT_ASSERT(source.shard_count() > 0);
  return reader.rank % source.shard_count();
}

Task<ShapedShard> shape_shard(ShardSource& source, ReaderRank reader, ShardWish wish) {
  ShapedShard shaped;
  const std::uint32_t rank = rank_of_blobs(source, reader);
  std::shared_ptr<const ShardRecord> own;
  if (wish.joins_shards) {
    CKPT_CO_TRY(own, co_await source.whole_record(rank));
    CKPT_CO_CHECK(co_await keep_pieces(source, reader, wish.tensors));
    std::set<std::string> wanted;
    for (const format::TensorSpec& tensor : wish.tensors) wanted.insert(tensor.name);
    join(*own, "", wanted, wish.tensors, shaped);
    std::vector<std::shared_ptr<const ShardRecord>> joined{own};
    for (std::uint64_t other = std::uint64_t{reader.rank} + reader.world_size;
         other < source.shard_count(); other += reader.world_size) {
      CKPT_CO_TRY(const auto record,
                  co_await source.whole_record(static_cast<std::uint32_t>(other)));
      join(*record, fmt::format("{}{}/", other_rank_prefix, other), wanted, wish.tensors, shaped);
      joined.push_back(record);
    }
    join_names(joined, wish.tensors, shaped);
  } else {
    std::vector<std::string> no_names;
    CKPT_CO_TRY(const Excerpt found, co_await source.look(rank, std::move(no_names)));
    own = found.record;
  }
  ShardRecord& record = shaped.record;
  record.job = own->job;
  record.run = own->run;
  record.id = {own->id.at, reader.rank};
  record.world_size = reader.world_size;
  CKPT_CO_TRY(record.layout,
              format::make_layout(wish.tensors, reader.rank, own->layout.blob_capacity));
  record.model = format::fingerprint(record.layout);
  take_blobs(*own, record);
  shaped.blobs = {rank, blob_extent(*own).offset};
  record.bytes = format::covered_bytes(record.layout, record.blob_bytes);
  record.chunk_bytes = own->chunk_bytes;
  co_return shaped;
}

Task<void> fill_shard(ShardSource& source, ReaderRank reader, ShapedShard& shaped,
                      std::span<std::byte> target, storage::TransferHooks hooks) {
  ShardRecord& record = shaped.record;
  CKPT_ASSERT(target.size() == record.bytes);
  Wants wants{pieces_of(shaped, target), bytes_of(shaped, target)};
  record.chunk_crcs.resize(div_ceil(record.bytes, record.chunk_bytes));
  TakeChecksums hash = [&](std::vector<RunSum> known) {
    return hash_chunks(record, target, std::move(known), hooks.compute);
  };
  const TargetChunks targets{target, record.chunk_bytes};
  auto read =
      co_await read_pieces(source, reader, std::move(wants), hooks, targets, std::move(hash));
  co_return read;
}

}  // namespace ckpt::gather
