// How a checkpoint is repaired:
//   1. It is verified. Both manifests are compared: the same run, timeline, step and records.
//   2. For each damaged file, another one is written aside. Each Chunk comes from the checkpoint
//   itself, if it is good there, else from the source. The whole is compared with what the manifest
//   says of the file.
//   3. The new files are put in the places of the damaged ones (replacement.hpp).
#include "storage/repair.hpp"

#include <fmt/format.h>

#include <set>

#include "base/assert.hpp"
#include "os/path.hpp"
#include "storage/catalog.hpp"
#include "storage/copy_packed.hpp"
#include "storage/member_reader.hpp"
#include "storage/page_buffer.hpp"
#include "storage/part_reader.hpp"
#include "storage/replacement.hpp"
#include "storage/shard_files.hpp"

namespace ckpt::storage {

namespace {

using ManifestPointer = std::shared_ptr<const format::Manifest>;

// Lives in repair_checkpoint's frame.
struct Repair {
  os::FileSystem& files;
  const std::string directory;         // The checkpoint's, marked (Site::at).
  const std::string source_directory;  // Its other copy's, marked.
  const RepairOrder order;
  const ManifestPointer manifest;
  const ManifestPointer source;
  Replacement replacement;
};

std::string repair_label(const Repair& repair) {
  return "repair " + os::display(repair.directory);
}

// Step 1.
Status check_same(const Repair& repair) {
  const Checkpoint ours = describe(*repair.manifest, {}), theirs = describe(*repair.source, {});
  if (ours.run == theirs.run && ours.at == theirs.at && ours.digests == theirs.digests) return {};
  return fail(Errc::invalid_argument,
              fmt::format("{} from {}: that is another checkpoint", repair_label(repair),
                          os::display(repair.source_directory)));
}

// The files of one rank in both places; lives in repair_rank's frame.
struct Rank {
  const format::ManifestShard& shard;
  std::shared_ptr<const format::ShardRecord> record;
  std::shared_ptr<ShardFiles> own;    // Null: a file is missing, or has another size.
  std::shared_ptr<ShardFiles> other;  // Opened when it is needed.
};

Task<void> read_good_chunk(Repair& repair, Rank& rank, std::size_t index,
                           std::span<std::byte> bytes) {
  const TransferHooks& hooks = repair.order.hooks;
  if (rank.own) {
    const Status own = co_await rank.own->read_chunk(index, bytes, hooks);
    if (own) co_return Status();
  }
  if (!rank.other) {
    const ShardPlace place =
        shard_place(repair.source_directory, repair.source->shards[rank.shard.rank]);
    CKPT_CO_TRY(rank.other, co_await ShardFiles::open(repair.files, place, rank.record));
  }
  Status read = co_await rank.other->read_chunk(index, bytes, hooks);
  co_return read;
}

// Step 2, for a member's file.
Task<void> write_member(Repair& repair, Rank& rank, std::size_t member) {
  const format::StoredFile& stored = rank.shard.files[member];
  const std::string path = repair.replacement.add_member(rank.shard, member);
  CKPT_CO_TRY(auto file, co_await repair.files.create(path, os::Caching::direct));
  CKPT_CO_CHECK(co_await file->allocate(stored.bytes));
  const std::vector<format::Extent> members = format::member_extents(*rank.record);
  PageBuffer memory(rank.record->chunk_bytes);
  Crc32 crc = 0;
  for (std::size_t index = 0; index < rank.record->chunk_crcs.size(); ++index) {
    const format::Extent chunk = rank.record->chunk(index);
    std::vector<FileSegment> segments = segments_of(chunk, members);
    std::erase_if(segments, [&](const FileSegment& each) { return each.member != member; });
    if (segments.empty()) continue;
    if (repair.order.is_cancelled && repair.order.is_cancelled())
      co_return fail(Errc::cancelled, repair_label(repair) + ": it was interrupted");
    const std::span<std::byte> bytes = memory.first(chunk.bytes);
    CKPT_CO_CHECK(co_await read_good_chunk(repair, rank, index, bytes));
    for (const FileSegment& segment : segments) {
      const auto part = bytes.subspan(segment.extent.offset - chunk.offset, segment.extent.bytes);
      crc = crc32(part, crc);
      CKPT_CO_CHECK(co_await file->write_at(segment.file_offset, part));
    }
  }
  if (crc != stored.crc) {
    co_return fail(Errc::corruption, fmt::format("{}: {} does not become what the manifest says",
                                                 repair_label(repair), path));
  }
  CKPT_CO_CHECK(co_await file->sync_data());
  Status closed = co_await file->close();
  co_return closed;
}

// Step 2, for a packed file. Where its frames lie depends on which were packed first, so only the
// same file can take its place.
Task<void> write_packed(Repair& repair, const format::ManifestShard& shard, std::size_t member) {
  const format::StoredFile& stored = shard.files[member];
  const format::ManifestShard& other = repair.source->shards[shard.rank];
  if (member >= other.files.size() || other.files[member] != stored) {
    co_return fail(Errc::unsupported,
                   fmt::format("{}: {} was compressed anew in the other copy: remove the "
                               "checkpoint, and copy the other",
                               repair_label(repair), stored.name));
  }
  const std::string from = os::join(shard_directory(repair.source_directory, other), stored.name);
  std::string to = repair.replacement.add_member(shard, member);
  Status copied =
      co_await copy_packed(repair.files, from, std::move(to), stored, repair.order.hooks);
  co_return copied;
}

// Step 2, for a part: its seal says whether the other copy's is the same.
Task<void> write_part(Repair& repair, const format::ManifestShard& shard) {
  const std::string name = format::part_name(shard.rank);
  const std::string directory =
      shard_directory(repair.source_directory, repair.source->shards[shard.rank]);
  CKPT_CO_TRY(auto bytes,
              co_await repair.files.read_small(os::join(directory, name), format::part_bytes_max));
  auto sealed = format::decode_shard_part(bytes, shard.part);
  if (!sealed) co_return fail(std::move(sealed).error().context("read the source's " + name));
  std::string path = repair.replacement.add_part(shard);
  Status written = co_await repair.files.write_small(std::move(path), std::move(bytes));
  co_return written;
}

Task<void> repair_rank(Repair& repair, std::uint32_t number, std::set<std::string> damaged) {
  const format::ManifestShard& shard = repair.manifest->shards[number];
  CKPT_CO_CHECK(co_await repair.replacement.begin_rank(shard));
  const bool is_part_damaged = damaged.contains(format::part_name(number));
  if (is_part_damaged) CKPT_CO_CHECK(co_await write_part(repair, shard));
  Rank rank{shard, {}, {}, {}};
  const std::string from = is_part_damaged ? repair.source_directory : repair.directory;
  const ManifestPointer& described = is_part_damaged ? repair.source : repair.manifest;
  CKPT_CO_TRY(rank.record, co_await read_record(repair.files, from, described, number));
  auto own =
      co_await ShardFiles::open(repair.files, shard_place(repair.directory, shard), rank.record);
  if (own) rank.own = std::move(own).value();
  for (std::size_t member = 0; member < shard.files.size(); ++member) {
    if (!damaged.contains(shard.files[member].name)) continue;
    const bool is_packed = shard.files[member].table.has_value();
    Task<void> written =
        is_packed ? write_packed(repair, shard, member) : write_member(repair, rank, member);
    CKPT_CO_CHECK(co_await std::move(written));
  }
  co_return Status();
}

// Step 2, for all files.
Task<void> write_all_aside(Repair& repair, const CheckpointReport& report) {
  std::size_t next = 0;
  for (const format::ManifestShard& shard : repair.manifest->shards) {
    const std::size_t count = shard.files.size() + (shard.embedded ? 0 : 1);
    std::set<std::string> damaged;
    for (const std::size_t end = next + count; next < end; ++next)
      if (!report.files.at(next).problem.empty()) damaged.insert(report.files[next].name);
    if (!damaged.empty())
      CKPT_CO_CHECK(co_await repair_rank(repair, shard.rank, std::move(damaged)));
  }
  CKPT_ASSERT(next == report.files.size());
  co_return Status();
}

}  // namespace

Task<std::vector<std::string>> repair_checkpoint(StepIn damaged, StepIn copy, RepairOrder order) {
  os::FileSystem& files = damaged.site.files();
  const std::string directory = damaged.site.at(damaged.name);
  // Step 1.
  CKPT_CO_TRY(const CheckpointReport report,
              co_await verify_checkpoint(files, directory, order.hooks));
  if (report.is_good()) co_return std::vector<std::string>();
  for (const FileReport& file : report.files) {
    if (!file.is_unreadable) continue;
    co_return fail(
        Errc::unavailable,
        fmt::format("repair {}: nothing is replaced, since {} could not be read, and may "
                    "be good: {}",
                    os::display(directory), file.name, file.problem));
  }
  auto source = co_await read_manifest(copy.site, copy.name);
  if (!source) co_return fail(std::move(source).error());
  // A name that a removal of the checkpoint knows as one of its files.
  const auto turn = static_cast<std::uint32_t>(1 + order.attempt % 1'000'000'000);
  Replacement::Target target{directory, describe(*report.manifest, {}), turn};
  Replacement replacement(files, std::move(target));
  Repair repair{files,           directory, copy.site.at(copy.name), std::move(order),
                report.manifest, *source,   std::move(replacement)};
  CKPT_CO_CHECK(check_same(repair));

  Status done = co_await write_all_aside(repair, report);
  if (done) done = co_await repair.replacement.put_in_place();
  CKPT_CO_CHECK(co_await repair.replacement.clean_up());
  if (!done) co_return fail(std::move(done).error());
  co_return repair.replacement.names();
}

}  // namespace ckpt::storage
