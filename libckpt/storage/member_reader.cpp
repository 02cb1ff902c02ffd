#include "storage/member_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/units.hpp"
#include "storage/catalog.hpp"
#include "storage/chunk_map.hpp"
#include "storage/parallel.hpp"
#include "storage/part_reader.hpp"

namespace ckpt::storage {

namespace {

using format::Extent;
using format::ShardRecord;

// One shard being read; lives in the frame that waits for all its workers.
struct Reading {
  std::string directory;
  std::shared_ptr<const ShardRecord> record;
  std::span<std::byte> target;
  TransferHooks hooks;
  std::vector<Extent> members;
  std::vector<std::unique_ptr<os::File>> opened;  // By member.
  std::uint64_t target_begin = 0;                 // Where `target` begins in the Slot.
};

Task<void> open_members(os::FileSystem& files, Reading& reading) {
  for (std::size_t index = 0; index < reading.members.size(); ++index) {
    const std::string path =
        os::join(reading.directory, reading.record->layout.members[index].file_name);
    const auto found = co_await files.status(path);
    // Not not_found: a caller takes that for an empty storage and starts from scratch.
    if (!found && found.error().code() == Errc::not_found)
      co_return fail(Errc::corruption, fmt::format("read {}: it is missing", os::display(path)));
    CKPT_CO_TRY(const auto status, found);
    if (status.kind != os::EntryKind::file) {
      co_return fail(Errc::corruption,
                     fmt::format("read {}: it is no regular file", os::display(path)));
    }
    CKPT_CO_TRY(auto file, co_await files.open_read(path, os::Caching::direct));
    if (status.bytes != reading.members[index].bytes) {
      co_return fail(Errc::corruption,
                     fmt::format("read {}: it has {} bytes, its manifest says {}",
                                 os::display(path), status.bytes, reading.members[index].bytes));
    }
    reading.opened.push_back(std::move(file));
  }
  co_return Status();
}

// The files that hold a Chunk, for errors.
std::string files_of(const Reading& reading, std::span<const FileSegment> segments) {
  std::string names;
  for (const FileSegment& segment : segments) {
    if (!segment.member) continue;
    if (!names.empty()) names += " or ";
    names += os::join(reading.directory, reading.record->layout.members[*segment.member].file_name);
  }
  return os::display(names);
}

Task<void> read_chunk(Reading& reading, std::size_t index) {
  const Extent chunk = reading.record->chunk(index);
  const std::vector<FileSegment> segments = segments_of(chunk, reading.members);
  const std::span<std::byte> bytes =
      reading.target.subspan(chunk.offset - reading.target_begin, chunk.bytes);
  if (reading.hooks.before_transfer) {
    CKPT_CO_CHECK(co_await reading.hooks.before_transfer(chunk.bytes));
  }
  for (const FileSegment& segment : segments) {
    const auto part = bytes.subspan(segment.extent.offset - chunk.offset, segment.extent.bytes);
    if (segment.member) {
      CKPT_ASSERT(*segment.member < reading.opened.size());
      os::File& file = *reading.opened[*segment.member];
      CKPT_CO_CHECK(co_await file.read_at(segment.file_offset, part));
    } else {
      std::memset(part.data(), 0, part.size());
    }
  }
  CKPT_CO_TRY(const Crc32 crc, co_await crc32_on(reading.hooks.compute, bytes));
  if (crc != reading.record->chunk_crcs[index]) {
    co_return fail(Errc::corruption, fmt::format("read {}: chunk {} does not match its checksum",
                                                 files_of(reading, segments), index));
  }
  if (reading.hooks.verified) reading.hooks.verified(chunk.bytes);
  if (index == 0) CKPT_POINT("load.disk.read");
  co_return Status();
}

}  // namespace

Task<void> read_shard(os::FileSystem& files, std::string step_directory,
                      std::shared_ptr<const ShardRecord> record, std::span<std::byte> target,
                      TransferHooks hooks) {
  CKPT_ASSERT(record != nullptr);
  if (target.size() < record->bytes) {
    co_return fail(
        Errc::invalid_argument,
        fmt::format("read rank {} of step {}: it needs {} bytes, the Slot has {}", record->id.rank,
                    number(record->id.at.step), record->bytes, target.size()));
  }
  Reading reading{step_directory, record, target, hooks, format::member_extents(*record), {}};
  CKPT_CO_CHECK(co_await open_members(files, reading));
  CKPT_ASSERT(reading.opened.size() == reading.members.size());
  std::function<Task<void>(std::size_t)> work = [&reading](std::size_t index) {
    return read_chunk(reading, index);
  };
  CKPT_CO_CHECK(co_await for_each_parallel(record->chunk_crcs.size(), chunks_in_flight_reading,
                                           std::move(work)));
  // Every byte was verified: a failure changes nothing.
  for (const auto& file : reading.opened) (void)co_await file->close();
  co_return Status();
}

bool CheckpointReport::is_good() const {
  return std::all_of(files.begin(), files.end(),
                     [](const FileReport& file) { return file.problem.empty(); });
}

namespace {

// Chunk buffers for O_DIRECT, reused for every file.
class PageBuffer {
 public:
  explicit PageBuffer(std::uint64_t bytes) : storage_(bytes + page_bytes) {
    const auto start = reinterpret_cast<std::uintptr_t>(storage_.data());
    bytes_ = std::span(storage_).subspan(align_up(start, page_bytes) - start, bytes);
  }
  std::span<std::byte> first(std::uint64_t bytes) { return bytes_.first(bytes); }

 private:
  std::vector<std::byte> storage_;
  std::span<std::byte> bytes_;
};

constexpr std::uint64_t verify_piece_bytes = 8 * MiB;
constexpr std::size_t damaged_text_max = 60;  // Enough chunk numbers for a person.
constexpr std::string_view mismatch = "its bytes do not match its checksum";

// Returns an empty text if the file has exactly these bytes.
Task<std::string> problem_of_file(os::FileSystem& files, std::string path, std::uint64_t bytes,
                                  Crc32 expected, PageBuffer& buffer) {
  const auto status = co_await files.status(path);
  if (!status) co_return status.error().message();
  if (status->kind != os::EntryKind::file) co_return std::string("it is no regular file");
  if (status->bytes != bytes) {
    co_return fmt::format("it has {} bytes, the manifest says {}", status->bytes, bytes);
  }
  auto opened = co_await files.open_read(path, os::Caching::direct);
  if (!opened) co_return opened.error().message();
  const std::unique_ptr<os::File> file = std::move(opened).value();
  Crc32 crc = 0;
  for (std::uint64_t offset = 0; offset < bytes; offset += verify_piece_bytes) {
    const auto piece = buffer.first(std::min(verify_piece_bytes, bytes - offset));
    const Status read = co_await file->read_at(offset, piece);
    if (!read) co_return read.error().message();
    crc = crc32(piece, crc);
  }
  const Status closed = co_await file->close();
  if (!closed) co_return closed.error().message();
  if (crc != expected) co_return std::string(mismatch);
  co_return std::string();
}

// Lists the Chunks in `member` that do not match their checksums. Called only after a mismatch, so
// that it may read everything again.
Task<std::string> damaged_chunks(os::FileSystem& files, std::string step_directory,
                                 std::shared_ptr<const ShardRecord> record, std::size_t member) {
  const std::uint64_t begin = record->layout.members[member].extent.offset;
  PageBuffer memory(record->chunk_bytes);
  Reading reading{step_directory, record, {}, {}, format::member_extents(*record), {}};
  const auto opened = co_await open_members(files, reading);
  if (!opened) co_return std::string();  // The other file reports it.
  const std::uint64_t end = begin + reading.members[member].bytes;
  std::string damaged;
  for (std::size_t index = 0; index < record->chunk_crcs.size(); ++index) {
    const Extent chunk = record->chunk(index);
    if (chunk.offset >= end || chunk.offset + chunk.bytes <= begin) continue;
    reading.target = memory.first(chunk.bytes);
    reading.target_begin = chunk.offset;
    const Status status = co_await read_chunk(reading, index);
    if (status) continue;
    if (damaged.size() > damaged_text_max) co_return damaged + ", and more";
    damaged += (damaged.empty() ? "" : ", ") + std::to_string(index);
  }
  co_return damaged;
}

}  // namespace

namespace {

// Verifies the files of one rank, and its part. Parts are read one after the other, so that memory
// holds one.
Task<void> verify_rank(os::FileSystem& files, std::string step_directory, std::uint32_t rank,
                       PageBuffer& buffer, CheckpointReport& report) {
  const format::ManifestShard& shard = report.manifest->shards[rank];
  const auto part = co_await read_part(files, step_directory, report.manifest, rank);
  for (std::size_t index = 0; index < shard.files.size(); ++index) {
    const format::StoredFile& stored = shard.files[index];
    FileReport file{stored.name, stored.bytes, {}};
    const std::string path = os::join(step_directory, file.name);
    CKPT_CO_TRY(file.problem,
                co_await problem_of_file(files, path, file.bytes, stored.crc, buffer));
    if (file.problem == mismatch && part) {
      const std::shared_ptr<const ShardRecord> record(*part, &(*part)->record);
      CKPT_CO_TRY(const auto chunks, co_await damaged_chunks(files, step_directory, record, index));
      if (!chunks.empty()) file.problem += ": chunk " + chunks;
    }
    report.files.push_back(std::move(file));
  }
  if (!shard.embedded) {
    const std::string problem = part ? "" : part.error().text();
    report.files.push_back({format::part_name(rank), shard.part.bytes, problem});
  }
  co_return Status();
}

}  // namespace

Task<CheckpointReport> verify_checkpoint(os::FileSystem& files, std::string step_directory) {
  CheckpointReport report;
  CKPT_CO_TRY(report.manifest, co_await read_manifest_at(files, step_directory));
  std::uint64_t largest = 0;
  for (const format::ManifestShard& shard : report.manifest->shards) {
    for (const format::StoredFile& file : shard.files) largest = std::max(largest, file.bytes);
  }
  PageBuffer buffer(std::min(largest, verify_piece_bytes));
  for (std::uint32_t rank = 0; rank < report.manifest->world_size; ++rank) {
    CKPT_CO_CHECK(co_await verify_rank(files, step_directory, rank, buffer, report));
  }
  std::set<std::string> known{std::string(format::manifest_name)};
  for (const FileReport& file : report.files) known.insert(file.name);
  CKPT_CO_TRY(const auto entries, co_await files.list(step_directory));
  for (const os::DirectoryEntry& entry : entries) {
    if (!known.contains(entry.name)) report.foreign.push_back(entry.name);
  }
  co_return report;
}

}  // namespace ckpt::storage
