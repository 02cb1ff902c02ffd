#include "gather/stored_shards.hpp"

#include <functional>

#include "storage/catalog.hpp"
#include "storage/page_buffer.hpp"
#include "storage/parallel.hpp"
#include "storage/part_reader.hpp"
#include "storage/shard_files.hpp"

namespace ckpt::gather {

namespace {

constexpr std::size_t chunks_in_flight = 4;  // For each shard.

// The references live until all Chunks are read.
Task<void> read_one(storage::ShardFiles& files, std::size_t index,
                    const ShardSource::TakeChunk& take, const storage::TransferHooks& hooks) {
  const std::uint64_t size = files.record().chunk(index).bytes;
  storage::PageBuffer buffer(size);
  const std::span<std::byte> bytes = buffer.first(size);
  CKPT_CO_CHECK(co_await files.read_chunk(index, bytes, hooks));
  take(index, bytes);
  co_return Status();
}

}  // namespace

Task<Excerpt> StoredShards::look(std::uint32_t rank, std::vector<std::string> names) {
  CKPT_CO_TRY(auto found, co_await storage::find_tensors(files_, directory_, manifest_, rank,
                                                         std::move(names)));
  Excerpt excerpt;
  excerpt.record = std::make_shared<const format::ShardRecord>(std::move(found.front.record));
  for (format::PartEntry& entry : found.entries) excerpt.tensors.push_back(std::move(entry.tensor));
  co_return excerpt;
}

Task<std::shared_ptr<const format::ShardRecord>> StoredShards::whole_record(std::uint32_t rank) {
  auto record = co_await storage::read_record(files_, directory_, manifest_, rank);
  co_return record;
}

Task<void> StoredShards::read(std::shared_ptr<const format::ShardRecord> record,
                              std::vector<std::size_t> chunks, TakeChunk take,
                              const storage::TransferHooks& hooks) {
  CKPT_CO_TRY(const auto shard, format::shard_of(*manifest_, record->id.rank));
  auto read =
      co_await read_stored_chunks(files_, storage::shard_place(directory_, shard),
                                  std::move(record), std::move(chunks), std::move(take), hooks);
  co_return read;
}

Task<void> read_stored_chunks(os::FileSystem& file_system, storage::ShardPlace stored,
                              std::shared_ptr<const format::ShardRecord> record,
                              std::vector<std::size_t> chunks, ShardSource::TakeChunk take,
                              const storage::TransferHooks& hooks) {
  CKPT_CO_TRY(const auto files, co_await storage::ShardFiles::open(file_system, stored, record));
  std::function<Task<void>(std::size_t)> work = [&](std::size_t place) {
    return read_one(*files, chunks[place], take, hooks);
  };
  CKPT_CO_CHECK(
      co_await storage::for_each_parallel(chunks.size(), chunks_in_flight, std::move(work)));
  (void)co_await files->close();  // Every Chunk was verified: a failure changes nothing.
  co_return Status();
}

}  // namespace ckpt::gather
