// How a checkpoint is copied:
//   1. The target gets the marker of the run, or has it already, and the history of both.
//   2. A checkpoint of this name there must be the same one, and whole; then nothing is left to do.
//   3. The work directory of an earlier copy is taken over by a rename, or one is made. For each
//      rank, every Chunk is read, compared with its checksum and written. The files are synced,
//      then the rank's part is written. A rank that an earlier copy finished is verified.
//   4. The manifest is written as it is, and synced; the work directory is synced.
//   5. The work directory is renamed to the step's name, and the parent is synced.
//   6. The copy is logged, and `latest` replaced.
#include "storage/copy.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "storage/catalog.hpp"
#include "storage/event_log.hpp"
#include "storage/member_reader.hpp"
#include "storage/page_buffer.hpp"
#include "storage/parallel.hpp"
#include "storage/part_reader.hpp"
#include "storage/run_catalog.hpp"
#include "storage/run_directory.hpp"
#include "storage/shard_files.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

namespace {

using Record = std::shared_ptr<const format::ShardRecord>;

constexpr std::uint64_t packed_piece_bytes = 8 * MiB;

std::string label(const CopyOrder& order) {
  return fmt::format("copy step {}", number(order.manifest->at.step));
}

// One half names the checkpoint, so that a later copy finds the work directory; the other one is
// random, so that no two copies share one.
std::uint64_t attempt_of(const CopyOrder& order) {
  const Digest digest = order.manifest->shards.front().record_digest;
  const std::uint64_t checkpoint = digest.high ^ order.manifest->created_unix_seconds;
  return checkpoint << 32 | (order.attempt & UINT32_MAX);
}

// Takes over what an earlier copy left. If that one still runs, it loses its directory by the
// rename, and fails: what it still writes into open files are the same bytes.
Task<void> take_work_directory(Site target, const CopyOrder& order, std::string name) {
  CKPT_CO_TRY(const auto entries, co_await target.files().list(target.at(".")));
  for (const os::DirectoryEntry& entry : entries) {
    const auto work = parse_work_directory(entry.name);
    const bool is_ours = work && work->at == order.manifest->at &&
                         work->attempt >> 32 == attempt_of(order) >> 32 &&
                         entry.kind == os::EntryKind::directory;
    if (!is_ours) continue;
    constexpr auto no_replace = os::RenameMode::no_replace;
    const Status taken =
        co_await target.files().rename(target.at(entry.name), target.at(name), no_replace);
    if (taken) co_return Status();
    if (taken.error().code() != Errc::not_found) co_return fail(Error(taken.error()));
  }
  Status made = co_await target.files().make_directory(target.at(name));
  co_return made;
}

// Step 1.
Task<void> prepare_target(Site target, const CopyOrder& order) {
  const format::Manifest& manifest = *order.manifest;
  RunOrder run;
  run.job = manifest.job;
  run.fresh_run = manifest.run;
  run.attempt = order.attempt;
  CKPT_CO_TRY(const format::RunMarker marker, co_await open_run_directory(target, std::move(run)));
  if (marker.run != manifest.run) {
    co_return fail(Errc::invalid_argument,
                   fmt::format("{} to {}: it is the directory of another run of job \"{}\"",
                               label(order), target.directory(), marker.job));
  }
  format::Timelines ours;
  ours.run = manifest.run;
  ours.history = {{manifest.at.timeline, {}}};
  if (order.timelines) ours = *order.timelines;
  CKPT_CO_TRY(const format::Timelines there, co_await load_timelines(target, manifest.run));
  auto merged = merge(there, ours);
  if (!merged)
    co_return fail(std::move(merged).error().context(label(order) + " to " + target.directory()));
  if (*merged == there) co_return Status();
  Status stored = co_await store_timelines(target, std::move(merged).value(), order.attempt);
  co_return stored;
}

// Step 2. False: there is no checkpoint of this name.
Task<bool> is_published(Site target, const CopyOrder& order, std::string name) {
  const auto there = co_await read_manifest(target, name);
  if (!there && there.error().code() == Errc::not_found) {
    const auto status = co_await target.files().status(target.at(name));
    if (!status && status.error().code() == Errc::not_found) co_return false;
  }
  const std::string path = os::display(target.at(name));
  const auto is_same = [&] {
    const Checkpoint one = describe(**there, name), other = describe(*order.manifest, name);
    return one.run == other.run && one.at == other.at && one.digests == other.digests &&
           one.created_unix_seconds == other.created_unix_seconds;
  };
  if (!there || !is_same()) {
    co_return fail(Errc::invalid_argument,
                   fmt::format("{} to {}: another checkpoint is there, or something else; it is "
                               "left as it is",
                               label(order), path));
  }
  CKPT_CO_TRY(const auto report, co_await verify_checkpoint(target.files(), target.at(name)));
  if (report.is_good()) co_return true;
  co_return fail(
      Errc::corruption,
      fmt::format("{} to {}: it is there already, and damaged: `ckpt verify` says where. "
                  "Remove it, and copy again",
                  label(order), path));
}

Status check_cancelled(const CopyOrder& order) {
  if (!order.is_cancelled || !order.is_cancelled()) return {};
  return fail(Errc::cancelled, label(order) + ": it was interrupted");
}

// One rank being copied; lives in copy_rank's frame.
struct CopyingRank {
  const CopyOrder& order;
  std::shared_ptr<ShardFiles> source;
  std::vector<std::unique_ptr<os::File>> opened;  // By member; in the target.
};

Task<void> copy_chunk(CopyingRank& rank, std::size_t index) {
  CKPT_CO_CHECK(check_cancelled(rank.order));
  const format::Extent chunk = rank.source->record().chunk(index);
  PageBuffer memory(chunk.bytes);
  const std::span<std::byte> bytes = memory.first(chunk.bytes);
  const TransferHooks no_hooks;
  CKPT_CO_CHECK(co_await rank.source->read_chunk(index, bytes, no_hooks));
  const std::vector<FileSegment> segments = segments_of(chunk, rank.source->members());
  for (const FileSegment& segment : segments) {
    if (!segment.member || !rank.opened[*segment.member]) continue;
    const auto part = bytes.subspan(segment.extent.offset - chunk.offset, segment.extent.bytes);
    CKPT_CO_CHECK(co_await rank.opened[*segment.member]->write_at(segment.file_offset, part));
  }
  if (rank.order.done) rank.order.done(chunk.bytes, false);
  co_return Status();
}

Task<void> remove_if_there(os::FileSystem& files, std::string path) {
  Status removed = co_await files.remove_file(path);
  if (!removed && removed.error().code() == Errc::not_found) removed = Status();
  co_return removed;
}

// A packed file is copied as it is, and synced. Errors: corruption (it is not what was sealed).
Task<void> copy_packed(os::FileSystem& files, std::string from, std::string to,
                       format::StoredFile stored) {
  CKPT_CO_TRY(const auto source, co_await files.open_read(from, os::Caching::direct));
  CKPT_CO_TRY(const auto target, co_await files.create(to, os::Caching::direct));
  CKPT_CO_CHECK(co_await target->allocate(stored.bytes));
  PageBuffer memory(std::min(stored.bytes, packed_piece_bytes));
  Crc32 crc = 0;
  for (std::uint64_t offset = 0; offset < stored.bytes; offset += packed_piece_bytes) {
    const auto piece = memory.first(std::min(packed_piece_bytes, stored.bytes - offset));
    CKPT_CO_CHECK(co_await source->read_at(offset, piece));
    crc = crc32(piece, crc);
    CKPT_CO_CHECK(co_await target->write_at(offset, piece));
  }
  if (crc != stored.crc)
    co_return fail(Errc::corruption,
                   fmt::format("read {}: it does not match its checksum", os::display(from)));
  CKPT_CO_CHECK(co_await target->sync_data());
  CKPT_CO_CHECK(co_await target->close());
  (void)co_await source->close();  // Every byte was verified.
  co_return Status();
}

// Step 3, for a rank that is not there yet, or not as a whole. Its part is written last.
Task<void> copy_rank(Site target, const CopyOrder& order, std::string directory, Record record) {
  const std::string part_name = format::part_name(record->id.rank);
  const bool has_part = !order.manifest->shards[record->id.rank].embedded;
  if (has_part)
    CKPT_CO_CHECK(co_await remove_if_there(target.files(), os::join(directory, part_name)));
  CopyingRank rank{order, nullptr, {}};
  const format::ManifestShard& shard = order.manifest->shards[record->id.rank];
  const ShardPlace source = shard_place(order.source, shard);
  CKPT_CO_TRY(rank.source, co_await ShardFiles::open(target.files(), source, record));
  for (std::size_t index = 0; index < rank.source->members().size(); ++index) {
    const std::string path = os::join(directory, shard.files[index].name);
    CKPT_CO_CHECK(co_await remove_if_there(target.files(), path));
    if (shard.files[index].table) {  // Its Chunks are read below, and their checksums compared.
      const std::string from = os::join(source.directory, shard.files[index].name);
      CKPT_CO_CHECK(co_await copy_packed(target.files(), from, path, shard.files[index]));
      rank.opened.push_back(nullptr);
      continue;
    }
    CKPT_CO_TRY(auto file, co_await target.files().create(path, os::Caching::direct));
    CKPT_CO_CHECK(co_await file->allocate(rank.source->members()[index].bytes));
    rank.opened.push_back(std::move(file));
  }
  std::function<Task<void>(std::size_t)> work = [&rank](std::size_t index) {
    return copy_chunk(rank, index);
  };
  CKPT_CO_CHECK(
      co_await for_each_parallel(record->chunk_crcs.size(), chunks_in_flight, std::move(work)));
  for (const auto& file : rank.opened) {
    if (!file) continue;
    CKPT_CO_CHECK(co_await file->sync_data());
    CKPT_CO_CHECK(co_await file->close());
  }
  (void)co_await rank.source->close();  // Every byte was verified.
  if (!has_part) co_return Status();
  CKPT_CO_TRY(auto part, co_await target.files().read_small(os::join(order.source, part_name),
                                                            format::part_bytes_max));
  const format::PartSeal& seal = order.manifest->shards[record->id.rank].part;
  CKPT_CO_CHECK(
      format::decode_shard_part(part, seal));  // It was read before, and may have changed.
  Status written =
      co_await target.files().write_small(os::join(directory, part_name), std::move(part));
  co_return written;
}

// Step 3: whether an earlier copy has finished the rank. Every byte is read.
Task<bool> is_rank_there(Site target, const CopyOrder& order, std::string directory,
                         Record record) {
  if (order.manifest->shards[record->id.rank].embedded) co_return false;
  const auto there =
      co_await read_record(target.files(), directory, order.manifest, record->id.rank);
  if (!there) co_return false;
  const ShardPlace place(directory, order.manifest->shards[record->id.rank].files);
  const auto copied = co_await ShardFiles::open(target.files(), place, record);
  if (!copied) co_return false;
  const TransferHooks no_hooks;
  for (std::size_t index = 0; index < record->chunk_crcs.size(); ++index) {
    CKPT_CO_CHECK(check_cancelled(order));
    PageBuffer memory(record->chunk(index).bytes);
    const std::span<std::byte> bytes = memory.first(record->chunk(index).bytes);
    const Status read = co_await (*copied)->read_chunk(index, bytes, no_hooks);
    if (!read) co_return false;
  }
  (void)co_await (*copied)->close();
  co_return true;
}

// Steps 3 and 4.
Task<void> fill(Site target, const CopyOrder& order, std::string work_name) {
  const std::string directory = target.at(work_name);
  CKPT_CO_CHECK(co_await take_work_directory(target, order, work_name));
  const std::string manifest_path = os::join(directory, format::manifest_name);
  CKPT_CO_CHECK(co_await remove_if_there(target.files(), manifest_path));
  for (std::uint32_t rank = 0; rank < order.manifest->world_size; ++rank) {
    CKPT_CO_TRY(const Record record,
                co_await read_record(target.files(), order.source, order.manifest, rank));
    CKPT_CO_TRY(const bool is_there, co_await is_rank_there(target, order, directory, record));
    if (is_there && order.done) order.done(record->bytes, true);
    if (!is_there) CKPT_CO_CHECK(co_await copy_rank(target, order, directory, record));
  }
  CKPT_CO_TRY(auto text,
              co_await target.files().read_small(os::join(order.source, format::manifest_name),
                                                 format::manifest_bytes_max));
  const std::string_view view(reinterpret_cast<const char*>(text.data()), text.size());
  CKPT_CO_TRY(const format::Manifest again, format::parse_manifest(view));
  if (describe(again, {}).digests != describe(*order.manifest, {}).digests) {
    co_return fail(Errc::unavailable,
                   label(order) + ": its job has saved it again meanwhile; copy again");
  }
  CKPT_CO_CHECK(co_await target.files().write_small(manifest_path, std::move(text)));
  Status synced = co_await target.files().sync_directory(directory);
  co_return synced;
}

// Step 6. Failures change nothing: the copy is durable.
Task<void> after_copying(Site target, const CopyOrder& order, std::string name) {
  Event event;
  event.operation = "copy";
  event.path = name;
  event.at = order.manifest->at;
  event.bytes = describe(*order.manifest, name).bytes;
  event.reason = "from " + os::display(order.source);
  const Status logged = co_await record_event(target, std::move(event));
  if (!logged) log_warning("storage: {}", logged.error().message());
  const auto read = co_await read_run_catalog(target);
  if (!read) co_return Status();
  const auto& all = read->catalog.checkpoints;
  const auto newest = std::find_if(all.rbegin(), all.rend(), [](const Checkpoint& checkpoint) {
    return !checkpoint.is_abandoned;
  });
  if (newest == all.rend() || newest->name != name) co_return Status();
  const std::string aside = aside_name("." + std::string(latest_name), order.attempt);
  const Status pointed =
      co_await replace_file(target, std::string(latest_name), name + "\n", aside);
  if (!pointed) log_warning("storage: update `latest`: {}", pointed.error().message());
  co_return Status();
}

}  // namespace

Result<format::Timelines> merge(const format::Timelines& one, const format::Timelines& other) {
  format::Timelines merged = one;
  for (const format::TimelineStart& start : other.history) {
    const auto known =
        std::ranges::find(merged.history, start.timeline, &format::TimelineStart::timeline);
    if (known == merged.history.end()) {
      merged.history.push_back(start);
    } else if (known->base != start.base) {
      return fail(Errc::invalid_argument,
                  fmt::format("the histories differ about timeline {}: a job went on from both "
                              "directories",
                              start.timeline));
    }
  }
  std::ranges::sort(merged.history, {}, &format::TimelineStart::timeline);
  if (one.history.empty()) merged.restore_counts = other.restore_counts;
  return merged;
}

Task<Copied> copy_checkpoint(Site target, CopyOrder order) {
  CKPT_ASSERT(order.manifest != nullptr);
  Copied copied;
  copied.name = step_directory_name(order.manifest->at.step);

  CKPT_CO_CHECK(co_await prepare_target(target, order));
  CKPT_CO_TRY(copied.was_there, co_await is_published(target, order, copied.name));
  if (copied.was_there) co_return copied;

  // Steps 3 and 4.
  const std::string work = work_directory_name(order.manifest->at, attempt_of(order));
  CKPT_CO_CHECK(co_await fill(target, order, work));

  // Step 5.
  constexpr auto no_replace = os::RenameMode::no_replace;
  CKPT_CO_CHECK(
      co_await target.files().rename(target.at(work), target.at(copied.name), no_replace));
  CKPT_CO_CHECK(co_await target.files().sync_directory(target.at(".")));
  CKPT_CO_CHECK(co_await after_copying(target, order, copied.name));
  co_return copied;
}

}  // namespace ckpt::storage
