#include "storage/member_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/assert.hpp"
#include "base/units.hpp"
#include "storage/catalog.hpp"
#include "storage/page_buffer.hpp"
#include "storage/parallel.hpp"
#include "storage/part_reader.hpp"
#include "storage/shard_files.hpp"

namespace ckpt::storage {

using format::Extent;
using format::ShardRecord;

namespace {

// The references are to what the frame of read_shard holds.
Task<void> fill_chunk(ShardFiles& shard, std::span<std::byte> target, const TransferHooks& hooks,
                      std::size_t index) {
  const Extent chunk = shard.record().chunk(index);
  const auto bytes = target.subspan(chunk.offset, chunk.bytes);
  CKPT_CO_CHECK(co_await shard.read_chunk(index, bytes, hooks));
  if (hooks.verified) hooks.verified(chunk.bytes);
  co_return Status();
}

}  // namespace

Task<void> read_shard(os::FileSystem& files, ShardPlace place,
                      std::shared_ptr<const ShardRecord> record, std::span<std::byte> target,
                      TransferHooks hooks) {
  CKPT_ASSERT(record != nullptr);
  if (target.size() < record->bytes) {
    co_return fail(
        Errc::invalid_argument,
        fmt::format("read rank {} of step {}: it needs {} bytes, the Slot has {}", record->id.rank,
                    number(record->id.at.step), record->bytes, target.size()));
  }
  CKPT_CO_TRY(const auto shard, co_await ShardFiles::open(files, place, record));
  std::function<Task<void>(std::size_t)> work = [&](std::size_t index) {
    return fill_chunk(*shard, target, hooks, index);
  };
  const bool is_packed = shard->is_packed();
  const std::size_t depth = is_packed ? packed_chunks_in_flight_reading : chunks_in_flight_reading;
  CKPT_CO_CHECK(co_await for_each_parallel(record->chunk_crcs.size(), depth, std::move(work)));
  (void)co_await shard->close();  // Every byte was verified: a failure changes nothing.
  co_return Status();
}

bool CheckpointReport::is_good() const {
  return std::all_of(files.begin(), files.end(),
                     [](const FileReport& file) { return file.problem.empty(); });
}

bool CheckpointReport::is_damaged() const {
  return std::ranges::any_of(
      files, [](const FileReport& file) { return !file.problem.empty() && !file.is_unreadable; });
}

namespace {

constexpr std::uint64_t verify_piece_bytes = 8 * MiB;
constexpr std::size_t damaged_text_max = 60;  // Enough chunk numbers for a person.
constexpr std::string_view mismatch = "its bytes do not match its checksum";

struct Problem {
  std::string text;
  bool is_unreadable = false;
};

Problem problem_of(const Error& error) {
  return {error.message(), is_unreadable(error.code())};
}

// Returns an empty text if the file has exactly these bytes.
Task<Problem> problem_of_file(os::FileSystem& files, std::string path, std::uint64_t bytes,
                              Crc32 expected, PageBuffer& buffer, const TransferHooks& hooks) {
  Problem problem;
  const auto status = co_await files.status(path);
  if (!status) co_return problem_of(status.error());
  if (status->kind != os::EntryKind::file) {
    problem.text = "it is no regular file";
    co_return problem;
  }
  if (status->bytes != bytes) {
    problem.text = fmt::format("it has {} bytes, the manifest says {}", status->bytes, bytes);
    co_return problem;
  }
  auto opened = co_await files.open_read(path, os::Caching::direct);
  if (!opened) co_return problem_of(opened.error());
  const std::unique_ptr<os::File> file = std::move(opened).value();
  Crc32 crc = 0;
  for (std::uint64_t offset = 0; offset < bytes; offset += verify_piece_bytes) {
    const auto piece = buffer.first(std::min(verify_piece_bytes, bytes - offset));
    if (hooks.before_transfer) CKPT_CO_CHECK(co_await hooks.before_transfer(piece.size()));
    const Status read = co_await file->read_at(offset, piece);
    if (!read) co_return problem_of(read.error());
    CKPT_CO_TRY(crc, co_await crc32_on(hooks.compute, piece, crc));
  }
  const Status closed = co_await file->close();
  if (!closed) co_return problem_of(closed.error());
  if (crc != expected) problem.text = mismatch;
  co_return problem;
}

// Lists the Chunks in `member` that do not match their checksums. Called only after a mismatch, so
// that it may read everything again.
Task<std::string> damaged_chunks(os::FileSystem& files, ShardPlace place,
                                 std::shared_ptr<const ShardRecord> record, std::size_t member) {
  const std::uint64_t begin = record->layout.members[member].extent.offset;
  PageBuffer memory(record->chunk_bytes);
  const auto shard = co_await ShardFiles::open(files, place, record);
  if (!shard) co_return std::string();  // The other file reports it.
  const std::uint64_t end = begin + (*shard)->members()[member].bytes;
  const TransferHooks no_hooks;
  std::string damaged;
  for (std::size_t index = 0; index < record->chunk_crcs.size(); ++index) {
    const Extent chunk = record->chunk(index);
    if (chunk.offset >= end || chunk.offset + chunk.bytes <= begin) continue;
    const std::span<std::byte> target = memory.first(chunk.bytes);
    const Status status = co_await (*shard)->read_chunk(index, target, no_hooks);
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
                       PageBuffer& buffer, const TransferHooks& hooks, CheckpointReport& report) {
  const format::ManifestShard& shard = report.manifest->shards[rank];
  const ShardPlace place = shard_place(step_directory, shard);
  const auto part = co_await read_part(files, step_directory, report.manifest, rank);
  for (std::size_t index = 0; index < shard.files.size(); ++index) {
    const format::StoredFile& stored = shard.files[index];
    FileReport file{stored.name, stored.bytes, {}, false};
    const std::string path = os::join(place.directory, file.name);
    CKPT_CO_TRY(Problem problem,
                co_await problem_of_file(files, path, file.bytes, stored.crc, buffer, hooks));
    file.problem = std::move(problem.text);
    file.is_unreadable = problem.is_unreadable;
    if (file.problem == mismatch && part) {
      const std::shared_ptr<const ShardRecord> record(*part, &(*part)->record);
      CKPT_CO_TRY(const auto chunks, co_await damaged_chunks(files, place, record, index));
      // Without a bad chunk, the damage of a packed file lies in its table or between frames.
      if (!chunks.empty()) file.problem += ": chunk " + chunks;
    }
    report.files.push_back(std::move(file));
  }
  if (!shard.embedded) {
    FileReport file{format::part_name(rank), shard.part.bytes, {}, false};
    if (!part) {
      file.problem = part.error().text();
      file.is_unreadable = is_unreadable(part.error().code());
    }
    report.files.push_back(std::move(file));
  }
  co_return Status();
}

}  // namespace

Task<CheckpointReport> verify_checkpoint(os::FileSystem& files, std::string step_directory,
                                         TransferHooks hooks) {
  CheckpointReport report;
  CKPT_CO_TRY(report.manifest, co_await read_manifest_at(files, step_directory));
  std::uint64_t largest = 0;
  for (const format::ManifestShard& shard : report.manifest->shards) {
    for (const format::StoredFile& file : shard.files) largest = std::max(largest, file.bytes);
  }
  PageBuffer buffer(std::min(largest, verify_piece_bytes));
  for (std::uint32_t rank = 0; rank < report.manifest->world_size; ++rank) {
    CKPT_CO_CHECK(co_await verify_rank(files, step_directory, rank, buffer, hooks, report));
  }
  std::set<std::string> known{std::string(format::manifest_name)};
  for (const FileReport& file : report.files) known.insert(file.name);
  for (const format::ManifestShard& shard : report.manifest->shards)
    known.insert(shard.folder.substr(0, shard.folder.find('/')));
  CKPT_CO_TRY(const auto entries, co_await files.list(step_directory));
  for (const os::DirectoryEntry& entry : entries) {
    if (!known.contains(entry.name)) report.foreign.push_back(entry.name);
  }
  co_return report;
}

Task<CheckpointReport> verify_checkpoint(os::FileSystem& files, std::string step_directory) {
  TransferHooks no_hooks;
  auto report = co_await verify_checkpoint(files, std::move(step_directory), std::move(no_hooks));
  co_return report;
}

Task<CheckpointReport> verify_checkpoint(Site site, std::string name) {
  auto report = co_await verify_checkpoint(site.files(), site.at(name));
  co_return report;
}

}  // namespace ckpt::storage
