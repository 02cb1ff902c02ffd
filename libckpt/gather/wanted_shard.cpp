#include "gather/wanted_shard.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

#include "base/assert.hpp"
#include "base/compute.hpp"
#include "base/units.hpp"
#include "format/piece.hpp"
#include "storage/page_buffer.hpp"
#include "storage/part_reader.hpp"
#include "storage/shard_files.hpp"

namespace ckpt::gather {

namespace {

using format::Extent;
using format::ShardRecord;

std::uint32_t rank_of_blobs(const format::Manifest& manifest, const Reader& reader) {
  CKPT_ASSERT(manifest.world_size > 0);
  return reader.rank % manifest.world_size;
}

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

// `record` is without tensors. The references live until the Task ends.
Task<void> read_blobs(os::FileSystem& files, std::string step_directory,
                      std::shared_ptr<const ShardRecord> record, std::span<std::byte> target,
                      const storage::TransferHooks& hooks) {
  const Extent blobs = blob_extent(*record);
  CKPT_ASSERT(target.size() == blobs.bytes);
  if (blobs.bytes == 0) co_return Status();
  CKPT_CO_TRY(const auto shard, co_await storage::ShardFiles::open(files, step_directory, record));
  storage::PageBuffer buffer(record->chunk_bytes);
  const std::uint64_t first = blobs.offset / record->chunk_bytes;
  for (std::size_t index = first; index * record->chunk_bytes < blobs.end(); ++index) {
    const Extent chunk = record->chunk(index);
    const std::span<std::byte> bytes = buffer.first(chunk.bytes);
    CKPT_CO_CHECK(co_await shard->read_chunk(index, bytes, hooks));
    const std::uint64_t begin = std::max(chunk.offset, blobs.offset);
    const std::uint64_t end = std::min(chunk.end(), blobs.end());
    std::memcpy(target.data() + (begin - blobs.offset), bytes.data() + (begin - chunk.offset),
                end - begin);
  }
  (void)co_await shard->close();  // Every Chunk was verified: a failure changes nothing.
  co_return Status();
}

std::vector<WantedPiece> wants_of(const format::Layout& layout, std::span<std::byte> target) {
  std::vector<WantedPiece> wants;
  std::map<std::string_view, std::vector<std::string>> others;  // By the name that they share.
  for (const format::TensorPlace& tensor : layout.tensors)
    if (!tensor.alias_of.empty()) others[tensor.alias_of].push_back(tensor.name);
  for (const format::TensorPlace& tensor : layout.tensors) {
    if (!tensor.alias_of.empty()) continue;
    WantedPiece wanted;
    wanted.want.name = tensor.name;
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

}  // namespace

Task<ShardRecord> shape_shard(os::FileSystem& files, std::string step_directory,
                              std::shared_ptr<const format::Manifest> manifest, Reader reader,
                              std::vector<format::TensorSpec> wanted) {
  const std::uint32_t rank = rank_of_blobs(*manifest, reader);
  std::vector<std::string> no_names;
  CKPT_CO_TRY(const auto found, co_await storage::find_tensors(files, step_directory, manifest,
                                                               rank, std::move(no_names)));
  const ShardRecord& source = found.front.record;
  ShardRecord record;
  record.job = source.job;
  record.run = source.run;
  record.id = {source.id.at, reader.rank};
  record.world_size = reader.world_size;
  CKPT_CO_TRY(record.layout, format::make_layout(wanted, reader.rank, source.layout.blob_capacity));
  record.model = format::fingerprint(record.layout);
  take_blobs(source, record);
  record.bytes = format::covered_bytes(record.layout, record.blob_bytes);
  record.chunk_bytes = source.chunk_bytes;
  co_return record;
}

Task<void> fill_shard(os::FileSystem& files, std::string step_directory,
                      std::shared_ptr<const format::Manifest> manifest, Reader reader,
                      ShardRecord& record, std::span<std::byte> target,
                      storage::TransferHooks hooks) {
  CKPT_ASSERT(target.size() == record.bytes);
  const std::uint32_t rank = rank_of_blobs(*manifest, reader);
  std::vector<std::string> no_names;
  CKPT_CO_TRY(const auto found, co_await storage::find_tensors(files, step_directory, manifest,
                                                               rank, std::move(no_names)));
  const auto source = std::make_shared<const ShardRecord>(found.front.record);
  const Extent blobs = blob_extent(record);
  CKPT_CO_CHECK(co_await read_blobs(files, step_directory, source,
                                    target.subspan(blobs.offset, blobs.bytes), hooks));
  std::vector<WantedPiece> wants = wants_of(record.layout, target);
  CKPT_CO_CHECK(
      co_await read_pieces(files, step_directory, manifest, reader, std::move(wants), hooks));
  record.chunk_crcs.resize(div_ceil(record.bytes, record.chunk_bytes));
  for (std::size_t index = 0; index < record.chunk_crcs.size(); ++index) {
    const Extent chunk = record.chunk(index);
    CKPT_CO_TRY(record.chunk_crcs[index],
                co_await crc32_on(hooks.compute, target.subspan(chunk.offset, chunk.bytes)));
  }
  co_return Status();
}

}  // namespace ckpt::gather
