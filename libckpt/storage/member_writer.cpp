// How one shard is written:
//   1. One file per member is created and allocated to its true size. A file that may share Chunks
//   only gets the size: what it shares needs no room.
//   2. Chunks are checksummed, compared with the record and written, several at a time; those of
//   packed files are packed in between. Unchanged ones are shared instead (chunk_sharing.hpp). A
//   stream brings some Chunks, which are written, and then the next ones.
//   3. The part is made: the record, and the checksum of each file. It stays beside the files.
//   4. The files and the part are synced together, so that a file system can commit them at once.
#include "storage/member_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/units.hpp"
#include "format/shard_part.hpp"
#include "storage/attempt.hpp"
#include "storage/chunk_map.hpp"
#include "storage/packed_file.hpp"
#include "storage/page_buffer.hpp"
#include "storage/parallel.hpp"

namespace ckpt::storage {

namespace {

using format::Extent;
using format::ShardRecord;

// One shard being written; lives in write_shard's frame until every worker has ended.
struct Writing {
  Writing(os::FileSystem& all, ShardToWrite from, std::string to, TransferHooks called)
      : files(all), source(std::move(from)), directory(std::move(to)), hooks(std::move(called)) {
    part.record = *source.record;
    members = format::member_extents(part.record);
    crcs.resize(part.record.chunk_crcs.size());
  }

  os::FileSystem& files;
  ShardToWrite source;
  std::string directory;
  TransferHooks hooks;
  format::ShardPart part;        // Its record is the source's.
  bool has_checksums = true;     // Else those of Chunks are taken from what is written.
  bool is_stream = false;        // `source.slot` has some Chunks, and then others.
  std::uint64_t slot_begin = 0;  // Where they are in the Slot.
  std::vector<Extent> members;
  std::vector<std::unique_ptr<os::File>> opened;                   // By member.
  std::vector<std::unique_ptr<PackedWriter>> packed;               // By member; null: it is plain.
  std::vector<std::vector<std::pair<Crc32, std::uint64_t>>> crcs;  // By chunk and segment.

  const ShardRecord& record() const { return part.record; }
  std::vector<std::span<const std::byte>> pieces(Extent range) const {
    range.offset -= slot_begin;
    return pieces_at(source.slot, range);
  }
};

Crc32 crc_of_zeros(std::uint64_t bytes) {
  static constexpr std::array<std::byte, page_bytes> zeros{};
  Crc32 crc = 0;
  for (std::uint64_t left = bytes; left > 0; left -= std::min<std::uint64_t>(left, zeros.size()))
    crc = crc32(std::span(zeros).first(std::min<std::uint64_t>(left, zeros.size())), crc);
  return crc;
}

bool is_packed_here(const Writing& writing, std::size_t member) {
  const ShardRecord& record = writing.record();
  return writing.source.compression && is_packed_kind(record.layout.members[member].kind) &&
         record.chunk_bytes <= format::packed_chunk_bytes_max;
}

std::unique_ptr<PackedWriter> make_packed(const Writing& writing, std::size_t member) {
  const format::PackedShape shape{writing.members[member], writing.record().chunk_bytes};
  return std::make_unique<PackedWriter>(*writing.opened[member], shape,
                                        frame_widths(writing.record(), member),
                                        *writing.source.compression);
}

Task<void> open_members(Writing& writing) {
  for (std::size_t index = 0; index < writing.members.size(); ++index) {
    const format::Member& member = writing.record().layout.members[index];
    const bool is_packed = is_packed_here(writing, index);
    const std::string name = is_packed ? format::packed_name(member.file_name) : member.file_name;
    const std::string path =
        path_in_attempt(writing.files, writing.directory, name, writing.source.turn);
    CKPT_CO_TRY(auto file, co_await writing.files.create(path, os::Caching::direct));
    writing.opened.push_back(std::move(file));
    writing.packed.push_back(is_packed ? make_packed(writing, index) : nullptr);
    os::File& opened = *writing.opened.back();
    const std::uint64_t bytes = writing.members[index].bytes;
    const bool shares = writing.source.sharing && writing.source.sharing->has_base();
    Task<void> allocated = is_packed ? writing.packed.back()->allocate()
                           : shares  ? opened.truncate(bytes)
                                     : opened.allocate(bytes);
    CKPT_CO_CHECK(co_await std::move(allocated));
    if (writing.hooks.verified) writing.hooks.verified(0);
  }
  co_return Status();
}

Unexpected chunk_mismatch(const ShardRecord& record, std::size_t chunk) {
  return fail(
      Errc::corruption,
      fmt::format("write rank {} of step {}: chunk {} in memory does not match its checksum",
                  record.id.rank, number(record.id.at.step), chunk));
}

// Step 2, for what one Chunk has of one file.
Task<void> write_segment(Writing& writing, const FileSegment& segment, Crc32 crc) {
  auto pieces = writing.pieces(segment.extent);
  if (PackedWriter* packed = writing.packed[*segment.member].get()) {
    const format::PackedShape shape{writing.members[*segment.member], writing.record().chunk_bytes};
    const auto chunk =
        static_cast<std::size_t>(segment.extent.offset / writing.record().chunk_bytes);
    const std::size_t frame = chunk - shape.first_chunk();
    Status written = co_await packed->write(frame, std::move(pieces), crc, writing.hooks);
    co_return written;
  }
  if (writing.hooks.before_transfer && writing.source.compression) {
    CKPT_CO_CHECK(co_await writing.hooks.before_transfer(segment.extent.bytes));
  }
  os::File& file = *writing.opened[*segment.member];
  std::uint64_t offset = segment.file_offset;
  for (const auto piece : pieces) {
    Task<void> written =
        writing.is_stream ? file.write_at(offset, piece) : file.write_lasting_at(offset, piece);
    CKPT_CO_CHECK(co_await std::move(written));
    offset += piece.size();
  }
  co_return Status();
}

// Step 2, for one Chunk that may be unchanged. Nothing is charged for bytes that are not written.
Task<bool> share_chunk(Writing& writing, std::size_t index, std::vector<FileSegment> segments) {
  const Extent chunk = writing.record().chunk(index);
  os::File* const file =
      segments.front().member ? writing.opened[*segments.front().member].get() : nullptr;
  auto pieces = writing.pieces(chunk);
  CKPT_CO_TRY(const bool is_shared,
              co_await writing.source.sharing->share(index, std::move(segments), std::move(pieces),
                                                     file, writing.hooks.compute));
  if (writing.hooks.before_transfer) {
    const std::uint64_t bytes = is_shared ? 0 : chunk.bytes;
    CKPT_CO_CHECK(co_await writing.hooks.before_transfer(bytes));
  }
  co_return is_shared;
}

// Step 2, for one chunk.
Task<void> write_chunk(Writing& writing, std::size_t index) {
  ShardRecord& record = writing.part.record;
  const Extent chunk = record.chunk(index);
  const std::vector<FileSegment> segments = segments_of(chunk, writing.members);
  // Packed files ask when they know how many bytes it will be.
  const bool may_share = writing.source.sharing != nullptr;
  if (writing.hooks.before_transfer && !writing.source.compression && !may_share) {
    CKPT_CO_CHECK(co_await writing.hooks.before_transfer(chunk.bytes));
  }
  Crc32 whole = 0;
  for (const FileSegment& segment : segments) {
    // Padding is read back as zeros. A Slot sealed with other bytes there would make a checkpoint
    // that nobody can restore.
    Crc32 crc = segment.member ? 0 : crc_of_zeros(segment.extent.bytes);
    if (segment.member) {
      const auto pieces = writing.pieces(segment.extent);
      for (const auto piece : pieces) {
        CKPT_CO_TRY(crc, co_await crc32_on(writing.hooks.compute, piece, crc));
      }
    }
    whole = crc32_combine(whole, crc, segment.extent.bytes);
    writing.crcs[index].emplace_back(crc, segment.extent.bytes);
  }
  if (!writing.has_checksums) record.chunk_crcs[index] = whole;
  if (whole != record.chunk_crcs[index]) co_return chunk_mismatch(record, index);
  bool is_shared = false;
  if (may_share) {
    CKPT_CO_TRY(is_shared, co_await share_chunk(writing, index, segments));
  }
  for (std::size_t place = 0; place < segments.size() && !is_shared; ++place) {
    const FileSegment& segment = segments[place];
    if (segment.member)
      CKPT_CO_CHECK(co_await write_segment(writing, segment, writing.crcs[index][place].first));
  }
  if (writing.hooks.verified) writing.hooks.verified(chunk.bytes);
  if (index == 0) CKPT_POINT("flush.write.first");
  if (index + 1 == record.chunk_crcs.size()) CKPT_POINT("flush.write.last");
  co_return Status();
}

Task<void> sync_member(Writing& writing, std::size_t member) {
  os::File& file = *writing.opened[member];
  CKPT_CO_CHECK(co_await file.sync_data());
  CKPT_CO_CHECK(co_await file.close());
  if (writing.hooks.verified) writing.hooks.verified(0);
  co_return Status();
}

// Step 4. It does not matter which is durable first: only a manifest makes them count.
Task<void> sync_all(Writing& writing, std::vector<std::byte> part) {
  const std::uint32_t rank = writing.record().id.rank;
  const std::string path = path_in_attempt(writing.files, writing.directory,
                                           format::part_name(rank), writing.source.turn);
  std::function<Task<void>(std::size_t)> sync = [&](std::size_t index) {
    return index == 0 ? writing.files.write_small(path, std::move(part))
                      : sync_member(writing, index - 1);
  };
  const std::size_t count = writing.opened.size() + 1;
  CKPT_CO_CHECK(co_await for_each_parallel(count, count, std::move(sync)));
  co_return Status();
}

Task<void> remember(Writing& writing) {
  std::vector<std::string> paths;
  for (const format::Member& member : writing.record().layout.members)
    paths.push_back(
        path_in_attempt(writing.files, writing.directory, member.file_name, writing.source.turn));
  CKPT_CO_CHECK(co_await writing.source.sharing->finish(writing.files, std::move(paths)));
  co_return Status();
}

// The checksums of the files as they are stored.
std::vector<Crc32> member_crcs(const Writing& writing) {
  std::vector<Crc32> crcs(writing.members.size(), 0);
  for (std::size_t chunk = 0; chunk < writing.crcs.size(); ++chunk) {
    const auto segments = segments_of(writing.record().chunk(chunk), writing.members);
    for (std::size_t index = 0; index < segments.size(); ++index) {
      if (!segments[index].member) continue;
      const auto& [crc, bytes] = writing.crcs[chunk][index];
      Crc32& so_far = crcs[*segments[index].member];
      so_far = crc32_combine(so_far, crc, bytes);
    }
  }
  for (std::size_t member = 0; member < crcs.size(); ++member)
    if (writing.packed[member]) crcs[member] = writing.packed[member]->crc();
  return crcs;
}

// As ShardPart has them.
std::vector<std::optional<format::PackedFile>> packed_files(const Writing& writing) {
  std::vector<std::optional<format::PackedFile>> files;
  if (std::ranges::none_of(writing.packed, [](const auto& packed) { return packed != nullptr; }))
    return files;
  for (const auto& packed : writing.packed) {
    files.emplace_back();
    if (packed) files.back() = packed->packed();
  }
  return files;
}

// Step 2, for these Chunks.
Task<void> write_chunks(Writing& writing, std::size_t begin, std::size_t count) {
  CKPT_ASSERT(begin + count <= writing.crcs.size());
  std::function<Task<void>(std::size_t)> work = [&writing, begin](std::size_t index) {
    return write_chunk(writing, begin + index);
  };
  const bool is_in_bucket = writing.files.objects(writing.directory) != nullptr;
  // Packing takes memory for each.
  const bool goes_wide = is_in_bucket && !writing.source.compression;
  const std::size_t depth = goes_wide ? chunks_in_flight_to_bucket : chunks_in_flight;
  Status written = co_await for_each_parallel(count, depth, std::move(work));
  co_return written;
}

// Step 2, for a stream.
Task<void> write_stream(Writing& writing, const ShardStream& stream) {
  const ShardRecord& record = writing.record();
  const std::size_t chunks = record.chunk_crcs.size();
  const std::uint64_t window = stream.chunks_at_once * record.chunk_bytes;
  PageBuffer memory(std::min(record.bytes, window));
  for (std::size_t begin = 0; begin < chunks; begin += stream.chunks_at_once) {
    const std::size_t count = std::min(stream.chunks_at_once, chunks - begin);
    const std::uint64_t offset = record.chunk(begin).offset;
    const Extent range{offset, record.chunk(begin + count - 1).end() - offset};
    const std::span<std::byte> bytes = memory.first(range.bytes);
    CKPT_CO_CHECK(co_await stream.read(range, bytes));
    writing.slot_begin = range.offset;
    writing.source.slot = {os::FileSpan{bytes}};
    CKPT_CO_CHECK(co_await write_chunks(writing, begin, count));
  }
  co_return Status();
}

// Step 3.
Task<std::vector<std::byte>> make_part(Writing& writing) {
  for (const auto& packed : writing.packed) {
    if (packed) CKPT_CO_CHECK(co_await packed->finish());
  }
  format::ShardPart& part = writing.part;
  part.member_crcs = member_crcs(writing);
  part.packed = packed_files(writing);
  CKPT_ASSERT(part.member_crcs.size() == part.record.layout.members.size());
  using Bytes = std::vector<std::byte>;
  std::function<Result<Bytes>()> encode = [&part] { return format::encode(part); };
  auto encoded = co_await compute_on(writing.hooks.compute, std::move(encode));
  co_return encoded;
}

// Steps 3 and 4.
Task<format::ShardFlushed> finish(Writing& writing) {
  CKPT_POINT("flush.data_done");

  // Step 3.
  CKPT_CO_TRY(std::vector<std::byte> encoded, co_await make_part(writing));

  // Step 4.
  CKPT_POINT("flush.fsync.before");
  CKPT_CO_CHECK(co_await sync_all(writing, std::move(encoded)));
  CKPT_POINT("flush.fsync.after");
  if (writing.source.sharing) CKPT_CO_CHECK(co_await remember(writing));

  format::ShardFlushed flushed;
  flushed.rank = writing.record().id.rank;
  flushed.turn = writing.source.turn;
  flushed.digest = format::digest_of(writing.record());
  co_return flushed;
}

}  // namespace

Task<format::ShardFlushed> write_shard(os::FileSystem& files, ShardToWrite source,
                                       std::string work_directory, TransferHooks hooks) {
  CKPT_ASSERT(source.record != nullptr);
  const ShardRecord& record = *source.record;
  const std::size_t chunks = record.chunk_crcs.size();
  CKPT_ASSERT(source.order.empty() || source.order.size() == chunks);
  if (bytes_of(source.slot) < record.bytes) {
    co_return fail(Errc::invalid_argument,
                   fmt::format("write rank {} of step {}: its Slot is smaller than its record says",
                               record.id.rank, number(record.id.at.step)));
  }
  Writing writing(files, source, work_directory, hooks);

  // Step 1.
  CKPT_ASSERT(!source.sharing || !source.compression);
  if (source.sharing) CKPT_CO_CHECK(co_await source.sharing->begin(files, source.record));
  CKPT_CO_CHECK(co_await open_members(writing));
  CKPT_ASSERT(writing.opened.size() == writing.members.size());
  CKPT_POINT("flush.prealloc");

  // Step 2.
  for (const std::size_t index : source.order) CKPT_CO_CHECK(co_await write_chunk(writing, index));
  CKPT_CO_CHECK(co_await write_chunks(writing, 0, source.order.empty() ? chunks : 0));

  // Steps 3 and 4.
  auto flushed = co_await finish(writing);
  co_return flushed;
}

Task<format::ShardFlushed> write_shard(os::FileSystem& files, ShardStream source,
                                       std::string work_directory, TransferHooks hooks) {
  CKPT_ASSERT(source.record != nullptr);
  CKPT_ASSERT(source.chunks_at_once > 0);
  ShardToWrite shard;
  shard.record = source.record;
  Writing writing(files, std::move(shard), work_directory, hooks);
  writing.is_stream = true;
  ShardRecord& record = writing.part.record;
  writing.has_checksums = !record.chunk_crcs.empty();
  record.chunk_crcs.resize(div_ceil(record.bytes, record.chunk_bytes));
  writing.crcs.resize(record.chunk_crcs.size());
  CKPT_CO_CHECK(co_await open_members(writing));
  CKPT_CO_CHECK(co_await write_stream(writing, source));
  auto flushed = co_await finish(writing);
  co_return flushed;
}

}  // namespace ckpt::storage
