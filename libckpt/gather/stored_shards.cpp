#include "gather/stored_shards.hpp"

#include <functional>

#include "storage/page_buffer.hpp"
#include "storage/parallel.hpp"

namespace ckpt::gather {

namespace {

constexpr std::size_t chunks_in_flight = 4;  // For each shard.

// One read of some Chunks. Lives until all of them are read.
struct ShardReading {
  storage::ShardCopies& files;
  const ChunkSink& sink;
  const storage::TransferHooks& hooks;
  std::vector<std::unique_ptr<storage::PageBuffer>> buffers;  // Those that no Chunk is in.
};

// Where a direct read may put the Chunk; empty: nowhere.
std::span<std::byte> place_of(const ChunkSink& sink, std::size_t index) {
  const auto places = sink.places_of(index);
  if (places.size() != 1) return {};
  const auto address = reinterpret_cast<std::uintptr_t>(places.front().data());
  return address % page_bytes == 0 ? places.front() : std::span<std::byte>();
}

Task<void> read_one(ShardReading& reading, std::size_t index) {
  if (const auto place = place_of(reading.sink, index); !place.empty()) {
    CKPT_CO_CHECK(co_await reading.files.read_chunk(index, place, reading.hooks));
    reading.sink.take(index, {});
    co_return Status();
  }
  std::unique_ptr<storage::PageBuffer> buffer;
  if (reading.buffers.empty()) {
    buffer = std::make_unique<storage::PageBuffer>(reading.files.record().chunk_bytes);
  } else {
    buffer = std::move(reading.buffers.back());
    reading.buffers.pop_back();
  }
  const std::span<std::byte> bytes = buffer->first(reading.files.record().chunk(index).bytes);
  CKPT_CO_CHECK(co_await reading.files.read_chunk(index, bytes, reading.hooks));
  if (reading.sink.copy) {
    std::function<void()> copy = [&] { reading.sink.copy(index, bytes); };
    CKPT_CO_CHECK(co_await run_on(reading.hooks.compute, std::move(copy)));
  }
  reading.sink.take(index, reading.sink.copy ? std::span<const std::byte>() : bytes);
  reading.buffers.push_back(std::move(buffer));
  co_return Status();
}

// Each Chunk comes from the first place that has it good.
Task<void> read_from(std::shared_ptr<storage::ShardCopies> files, std::vector<std::size_t> chunks,
                     ChunkSink sink, const storage::TransferHooks& hooks) {
  ShardReading reading{*files, sink, hooks, {}};
  std::function<Task<void>(std::size_t)> work = [&](std::size_t place) {
    return read_one(reading, chunks[place]);
  };
  CKPT_CO_CHECK(
      co_await storage::for_each_parallel(chunks.size(), chunks_in_flight, std::move(work)));
  (void)co_await files->close();  // Every Chunk was verified: a failure changes nothing.
  co_return Status();
}

}  // namespace

Task<Excerpt> StoredShards::look(std::uint32_t rank, std::vector<std::string> names) {
  std::vector<Error> errors;
  for (const storage::OpenStep& copy : copies_) {
    auto found = co_await storage::find_tensors(copy, rank, names);
    if (!found) {
      errors.push_back(std::move(found).error());
      continue;
    }
    Excerpt excerpt;
    excerpt.record = std::make_shared<const format::ShardRecord>(std::move(found->front.record));
    for (format::PartEntry& entry : found->entries)
      excerpt.tensors.push_back(std::move(entry.tensor));
    co_return excerpt;
  }
  co_return fail(storage::most_telling(std::move(errors)));
}

Task<std::shared_ptr<const format::ShardRecord>> StoredShards::whole_record(std::uint32_t rank) {
  auto record = co_await storage::read_record(copies_, rank);
  co_return record;
}

Task<void> StoredShards::read(std::shared_ptr<const format::ShardRecord> record,
                              std::vector<std::size_t> chunks, ChunkSink sink,
                              const storage::TransferHooks& hooks) {
  CKPT_CO_TRY(auto files, co_await storage::open_shard(copies_, std::move(record)));
  Status read = co_await read_from(std::move(files), std::move(chunks), std::move(sink), hooks);
  co_return read;
}

Task<void> read_stored_chunks(storage::StepShard shard,
                              std::shared_ptr<const format::ShardRecord> record,
                              std::vector<std::size_t> chunks, ChunkSink sink,
                              const storage::TransferHooks& hooks) {
  CKPT_CO_TRY(auto files, co_await storage::open_shard(std::move(shard), std::move(record)));
  Status read = co_await read_from(std::move(files), std::move(chunks), std::move(sink), hooks);
  co_return read;
}

}  // namespace ckpt::gather
