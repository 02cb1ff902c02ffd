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
std::span<std::byte> direct_place(const std::vector<std::span<std::byte>>& places) {
  if (places.empty()) return {};
  std::byte* const begin = places.front().data();
  std::byte* end = begin;
  for (const std::span<std::byte> place : places) {
    if (place.data() != end) return {};
    end += place.size();
  }
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(begin) % page_bytes == 0;
  return is_aligned ? std::span(begin, end) : std::span<std::byte>();
}

std::unique_ptr<storage::PageBuffer> buffer_of(ShardReading& reading) {
  if (reading.buffers.empty())
    return std::make_unique<storage::PageBuffer>(reading.files.record().chunk_bytes);
  auto buffer = std::move(reading.buffers.back());
  reading.buffers.pop_back();
  return buffer;
}

// A copy verifies in the same pass.
Task<void> read_one(ShardReading& reading, std::size_t index) {
  const format::ShardRecord& record = reading.files.record();
  ChunkInMemory chunk{index, {}, record.chunk_crcs.at(index), reading.sink.places_of(index)};
  std::span<std::byte> room = direct_place(chunk.places);
  std::unique_ptr<storage::PageBuffer> buffer;
  if (room.empty()) {
    buffer = buffer_of(reading);
    room = buffer->first(record.chunk(index).bytes);
  }
  chunk.bytes = room;
  storage::ChunkCheck check = [&reading, &chunk] { return bring(reading.sink, chunk); };
  CKPT_CO_CHECK(co_await reading.files.read_chunk(index, room, reading.hooks, std::move(check)));
  reading.sink.take(index,
                    chunk.is_brought(reading.sink) ? std::span<const std::byte>() : chunk.bytes);
  if (buffer) reading.buffers.push_back(std::move(buffer));
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
