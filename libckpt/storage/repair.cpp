// How a checkpoint is repaired:
//   1. It is verified. Both manifests are compared: the same run, timeline, step and records.
//   2. For each damaged file, another one is written beside it. Each Chunk comes from the
//   checkpoint itself, if it is good there, else from the source. The whole is compared with what
//   the manifest says of the file. In a bucket the new object's parts are uploaded, and it is not
//   completed.
//   3. Nobody has replaced the checkpoint meanwhile. Each new file is renamed over the damaged one;
//   in a bucket its upload is completed. The objects there are of one attempt alone, so that no
//   other checkpoint can be hit.
//   4. The directories are synced.
#include "storage/repair.hpp"

#include <fmt/format.h>

#include <set>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "os/path.hpp"
#include "storage/catalog.hpp"
#include "storage/copy_packed.hpp"
#include "storage/member_reader.hpp"
#include "storage/page_buffer.hpp"
#include "storage/part_reader.hpp"
#include "storage/shard_files.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

namespace {

using Manifest = std::shared_ptr<const format::Manifest>;

struct Replacement {
  std::string name;
  std::string path;                // The damaged file's.
  std::string aside;               // The new one's; empty: in a bucket.
  std::unique_ptr<os::File> file;  // In a bucket: not complete yet. Null: it is a part.
  std::vector<std::byte> part;
};

// Lives in repair_checkpoint's frame.
struct Work {
  os::FileSystem& files;
  const RepairOrder order;
  const Manifest manifest;
  const Manifest source;
  std::vector<Replacement> replacements;

  bool is_in_bucket() const { return files.objects(order.directory) != nullptr; }
  Replacement begin(const format::ManifestShard& shard, const std::string& name) const {
    Replacement made;
    made.name = name;
    const std::string directory = shard_directory(order.directory, shard);
    made.path = os::join(directory, name);
    // A name that a removal of the checkpoint knows as one of its files.
    const auto turn = static_cast<std::uint32_t>(1 + order.attempt % 1'000'000'000);
    if (!is_in_bucket()) made.aside = os::join(directory, turn_name(name, turn));
    return made;
  }
};

std::string label(const Work& work) {
  return "repair " + os::display(work.order.directory);
}

// Step 1.
Status check_same(const Work& work) {
  const Checkpoint ours = describe(*work.manifest, {}), theirs = describe(*work.source, {});
  if (ours.run == theirs.run && ours.at == theirs.at && ours.digests == theirs.digests) return {};
  return fail(Errc::invalid_argument, fmt::format("{} from {}: that is another checkpoint",
                                                  label(work), os::display(work.order.source)));
}

// The files of one rank in both places; lives in repair_rank's frame.
struct Rank {
  const format::ManifestShard& shard;
  std::shared_ptr<const format::ShardRecord> record;
  std::shared_ptr<ShardFiles> own;    // Null: a file is missing, or has another size.
  std::shared_ptr<ShardFiles> other;  // Opened when it is needed.
};

Task<void> read_good_chunk(Work& work, Rank& rank, std::size_t index, std::span<std::byte> bytes) {
  const TransferHooks& hooks = work.order.hooks;
  if (rank.own) {
    const Status own = co_await rank.own->read_chunk(index, bytes, hooks);
    if (own) co_return Status();
  }
  if (!rank.other) {
    const ShardPlace place = shard_place(work.order.source, work.source->shards[rank.shard.rank]);
    CKPT_CO_TRY(rank.other, co_await ShardFiles::open(work.files, place, rank.record));
  }
  Status read = co_await rank.other->read_chunk(index, bytes, hooks);
  co_return read;
}

// Step 2, for a member's file.
Task<void> write_member(Work& work, Rank& rank, std::size_t member) {
  const format::StoredFile& stored = rank.shard.files[member];
  work.replacements.push_back(work.begin(rank.shard, stored.name));
  const std::string path =
      work.is_in_bucket() ? work.replacements.back().path : work.replacements.back().aside;
  CKPT_CO_TRY(auto file, co_await work.files.create(path, os::Caching::direct));
  CKPT_CO_CHECK(co_await file->allocate(stored.bytes));
  const std::vector<format::Extent> members = format::member_extents(*rank.record);
  PageBuffer memory(rank.record->chunk_bytes);
  Crc32 crc = 0;
  for (std::size_t index = 0; index < rank.record->chunk_crcs.size(); ++index) {
    const format::Extent chunk = rank.record->chunk(index);
    std::vector<FileSegment> segments = segments_of(chunk, members);
    std::erase_if(segments, [&](const FileSegment& each) { return each.member != member; });
    if (segments.empty()) continue;
    if (work.order.is_cancelled && work.order.is_cancelled())
      co_return fail(Errc::cancelled, label(work) + ": it was interrupted");
    const std::span<std::byte> bytes = memory.first(chunk.bytes);
    CKPT_CO_CHECK(co_await read_good_chunk(work, rank, index, bytes));
    for (const FileSegment& segment : segments) {
      const auto part = bytes.subspan(segment.extent.offset - chunk.offset, segment.extent.bytes);
      crc = crc32(part, crc);
      CKPT_CO_CHECK(co_await file->write_at(segment.file_offset, part));
    }
  }
  if (crc != stored.crc) {
    co_return fail(Errc::corruption,
                   fmt::format("{}: {} does not become what the manifest says", label(work), path));
  }
  if (work.is_in_bucket()) {
    work.replacements.back().file = std::move(file);
    co_return Status();
  }
  CKPT_CO_CHECK(co_await file->sync_data());
  Status closed = co_await file->close();
  co_return closed;
}

// Step 2, for a packed file. Where its frames lie depends on which were packed first, so only the
// same file can take its place.
Task<void> write_packed(Work& work, const format::ManifestShard& shard, std::size_t member) {
  const format::StoredFile& stored = shard.files[member];
  const format::ManifestShard& other = work.source->shards[shard.rank];
  if (member >= other.files.size() || other.files[member] != stored) {
    co_return fail(Errc::unsupported,
                   fmt::format("{}: {} was compressed anew in the other copy: remove the "
                               "checkpoint, and copy the other",
                               label(work), stored.name));
  }
  work.replacements.push_back(work.begin(shard, stored.name));
  Replacement& made = work.replacements.back();
  const std::string from = os::join(shard_directory(work.order.source, other), stored.name);
  CKPT_CO_TRY(auto file, co_await begin_packed_copy(work.files, from,
                                                    work.is_in_bucket() ? made.path : made.aside,
                                                    stored, work.order.hooks));
  if (work.is_in_bucket()) {
    made.file = std::move(file);
    co_return Status();
  }
  CKPT_CO_CHECK(co_await file->sync_data());
  Status closed = co_await file->close();
  co_return closed;
}

// Step 2, for a part: its seal says whether the other copy's is the same.
Task<void> write_part(Work& work, const format::ManifestShard& shard) {
  const std::string name = format::part_name(shard.rank);
  const std::string directory = shard_directory(work.order.source, work.source->shards[shard.rank]);
  CKPT_CO_TRY(auto bytes,
              co_await work.files.read_small(os::join(directory, name), format::part_bytes_max));
  auto sealed = format::decode_shard_part(bytes, shard.part);
  if (!sealed) co_return fail(std::move(sealed).error().context("read the source's " + name));
  work.replacements.push_back(work.begin(shard, name));
  Replacement& made = work.replacements.back();
  if (work.is_in_bucket()) {
    made.part = std::move(bytes);
    co_return Status();
  }
  Status written = co_await work.files.write_small(made.aside, std::move(bytes));
  co_return written;
}

Task<void> repair_rank(Work& work, std::uint32_t number, std::set<std::string> damaged) {
  const format::ManifestShard& shard = work.manifest->shards[number];
  const bool is_part_damaged = damaged.contains(format::part_name(number));
  if (is_part_damaged) CKPT_CO_CHECK(co_await write_part(work, shard));
  Rank rank{shard, {}, {}, {}};
  const std::string from = is_part_damaged ? work.order.source : work.order.directory;
  const Manifest& described = is_part_damaged ? work.source : work.manifest;
  CKPT_CO_TRY(rank.record, co_await read_record(work.files, from, described, number));
  auto own =
      co_await ShardFiles::open(work.files, shard_place(work.order.directory, shard), rank.record);
  if (own) rank.own = std::move(own).value();
  for (std::size_t member = 0; member < shard.files.size(); ++member) {
    if (!damaged.contains(shard.files[member].name)) continue;
    const bool is_packed = shard.files[member].table.has_value();
    Task<void> written =
        is_packed ? write_packed(work, shard, member) : write_member(work, rank, member);
    CKPT_CO_CHECK(co_await std::move(written));
  }
  co_return Status();
}

// Step 3, for one file.
Task<void> put_in_place(Work& work, Replacement& made) {
  CKPT_ASSERT(made.aside.empty() == work.is_in_bucket());
  if (!made.aside.empty()) {
    constexpr auto replace = os::RenameMode::replace;
    Status renamed = co_await work.files.rename(made.aside, made.path, replace);
    co_return renamed;
  }
  if (made.file) {
    Status completed = co_await made.file->sync_data();
    co_return completed;
  }
  const os::PutCondition replace(os::PutMode::replace);
  Status put = co_await work.files.objects(made.path)->put_small(made.path, made.part, replace);
  co_return put;
}

// Steps 3 and 4.
Task<void> put_all_in_place(Work& work) {
  const Checkpoint seen = describe(*work.manifest, {});
  for (Replacement& made : work.replacements) {
    CKPT_CO_TRY(const bool is_gone, co_await has_gone(work.files, work.order.directory, seen));
    if (is_gone) {
      co_return fail(Errc::unavailable,
                     label(work) + ": its job has removed or replaced it meanwhile");
    }
    CKPT_CO_CHECK(co_await put_in_place(work, made));
  }
  Status synced = co_await work.files.sync_directory(work.order.directory);
  co_return synced;
}

// Step 2, for all files.
Task<void> write_all_aside(Work& work, const CheckpointReport& report) {
  std::size_t next = 0;
  for (const format::ManifestShard& shard : work.manifest->shards) {
    const std::size_t count = shard.files.size() + (shard.embedded ? 0 : 1);
    std::set<std::string> damaged;
    for (const std::size_t end = next + count; next < end; ++next)
      if (!report.files.at(next).problem.empty()) damaged.insert(report.files[next].name);
    if (!damaged.empty()) CKPT_CO_CHECK(co_await repair_rank(work, shard.rank, std::move(damaged)));
  }
  CKPT_ASSERT(next == report.files.size());
  co_return Status();
}

}  // namespace

Task<std::vector<std::string>> repair_checkpoint(os::FileSystem& files, RepairOrder order) {
  // Step 1.
  CKPT_CO_TRY(const CheckpointReport report,
              co_await verify_checkpoint(files, order.directory, order.hooks));
  std::vector<std::string> names;
  if (report.is_good()) co_return names;
  auto source = co_await read_manifest_at(files, order.source);
  if (!source) co_return fail(std::move(source).error());
  Work work{files, std::move(order), report.manifest, *source, {}};
  CKPT_CO_CHECK(check_same(work));

  Status done = co_await write_all_aside(work, report);
  if (done) done = co_await put_all_in_place(work);
  for (const Replacement& made : work.replacements) {
    if (done) names.push_back(made.name);
    if (done || made.aside.empty()) continue;
    const Status removed = co_await files.remove_file(made.aside);  // Unless it is in its place.
    if (!removed && removed.error().code() != Errc::not_found)
      log_warning("storage: {} is left behind: {}", made.aside, removed.error().message());
  }
  if (!done) co_return fail(std::move(done).error());
  co_return names;
}

}  // namespace ckpt::storage
