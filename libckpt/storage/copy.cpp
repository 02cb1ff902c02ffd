// How a checkpoint is copied:
//   1. The target gets the marker of the run, or has it already; both histories must agree.
//   2. A checkpoint of this name there must be the same one, and whole; then nothing is left to do.
//   3. The work directory of an earlier copy is taken over by a rename, or one is made. For each
//      rank, every Chunk is read, compared with its checksum and written. The files are synced,
//      then the rank's part is written. A rank that an earlier copy finished is verified.
//   4. The manifest is written as it is, and synced; the work directory is synced.
//   5. The target gets the history of both, and not before: one that comes without its step may
//      abandon all that is there. The work directory is renamed to the step's name, and the parent
//      is synced.
//   6. The copy is logged, and `latest` replaced.
// In a bucket nothing is renamed or removed: the files lie in the folder of an attempt that follows
// from the checkpoint alone. So two copies at once put the same bytes under the same names, and the
// one that puts the manifest first is found by the other.
#include "storage/copy.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "storage/attempt.hpp"
#include "storage/bucket_publish.hpp"
#include "storage/bucket_removal.hpp"
#include "storage/catalog.hpp"
#include "storage/copy_packed.hpp"
#include "storage/copy_target.hpp"
#include "storage/event_log.hpp"
#include "storage/in_the_way.hpp"
#include "storage/latest.hpp"
#include "storage/member_reader.hpp"
#include "storage/page_buffer.hpp"
#include "storage/parallel.hpp"
#include "storage/part_reader.hpp"
#include "storage/removal.hpp"
#include "storage/run_catalog.hpp"
#include "storage/run_directory.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

namespace {

using Record = std::shared_ptr<const format::ShardRecord>;

// One half names the checkpoint, so that a later copy finds what an earlier one left. On a disk,
// the other half is random, so that no two copies share a directory.
std::uint64_t copy_attempt_of(const CopyOrder& order, std::uint64_t other_half) {
  const Digest digest = order.manifest->shards.front().record_digest;
  const std::uint64_t checkpoint = digest.high ^ order.manifest->created_unix_seconds;
  return checkpoint << 32 | (other_half & UINT32_MAX);
}

// The same checkpoint, whose files lie in this folder beside the manifest; empty: beside it.
format::Manifest in_folder(const CopyOrder& order, const std::string& folder) {
  format::Manifest manifest = *order.manifest;
  for (format::ManifestShard& shard : manifest.shards) shard.folder = folder;
  return manifest;
}

// Takes over what an earlier copy left. If that one still runs, it loses its directory by the
// rename, and fails: its last writes into open files are the same bytes.
Task<void> take_work_directory(Site target, const CopyOrder& order, std::string name) {
  CKPT_CO_TRY(const auto entries, co_await target.files().list(target.at(".")));
  for (const os::DirectoryEntry& entry : entries) {
    const auto work = parse_work_directory(entry.name);
    const bool is_ours = work && work->at == order.manifest->at &&
                         work->attempt >> 32 == copy_attempt_of(order, 0) >> 32 &&
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

// A step of an older timeline that the job has saved again: after a restore to an older step, or
// after a fresh start, which abandons nothing by name.
bool makes_way(const CopyOrder& order, const format::Timelines& timelines,
               const format::Manifest& standing) {
  if (!order.is_of_running_job || standing.run != order.manifest->run) return false;
  return standing.at < order.manifest->at || format::is_abandoned(timelines.history, standing.at);
}

// Step 2. False: there is no checkpoint of this name.
Task<bool> is_published(Site target, const CopyOrder& order, const format::Timelines& timelines,
                        std::string name) {
  const auto there = co_await read_manifest(target, name);
  if (!there && there.error().code() == Errc::not_found) {
    if (target.objects() != nullptr) co_return false;  // Objects without a manifest: attempts.
    const auto status = co_await target.files().status(target.at(name));
    if (!status && status.error().code() == Errc::not_found) co_return false;
  }
  const std::string path = os::display(target.at(name));
  const auto is_same = [&] {
    const Checkpoint one = describe(**there, name), other = describe(*order.manifest, name);
    return one.run == other.run && one.at == other.at && one.digests == other.digests &&
           one.created_unix_seconds == other.created_unix_seconds;
  };
  if (there && makes_way(order, timelines, **there)) co_return false;
  if (!there && !is_unreadable(there.error().code())) {
    const Error& problem = there.error();
    const bool is_in_bucket = target.objects() != nullptr;
    const std::string way_out = how_to_move_away(problem, path, is_in_bucket);
    const std::string what = fmt::format("{} to {}: ", copy_label(order), path);
    if (way_out.empty()) {
      co_return fail(Errc::version_mismatch,
                     fmt::format("{}a checkpoint of a newer libckpt is there ({}); it is left as "
                                 "it is",
                                 what, problem.message()));
    }
    co_return fail(Errc::invalid_argument,
                   fmt::format("{}something else is there, without a whole manifest ({}). To copy "
                               "the step there, {}, and copy again",
                               what, problem.message(), way_out));
  }
  if (!there || !is_same()) {
    co_return fail(Errc::invalid_argument,
                   fmt::format("{} to {}: another checkpoint is there, or something else; it is "
                               "left as it is",
                               copy_label(order), path));
  }
  CKPT_CO_TRY(const auto report, co_await verify_checkpoint(target.files(), target.at(name)));
  if (report.is_good()) co_return true;
  co_return fail(
      Errc::corruption,
      fmt::format("{} to {}: it is there already, and damaged: `ckpt verify` says where. "
                  "Remove it, and copy again",
                  copy_label(order), path));
}

Status check_cancelled(const CopyOrder& order) {
  if (!order.is_cancelled || !order.is_cancelled()) return {};
  return fail(Errc::cancelled, copy_label(order) + ": it was interrupted");
}

std::vector<StepCopy> sources_of(const CopyOrder& order) {
  CKPT_ASSERT(!order.sources.empty());
  std::vector<StepCopy> sources;
  for (const OpenStep& each : order.sources) sources.push_back(each.copy());
  return sources;
}

// One rank being copied; lives in copy_rank's frame.
struct CopyingRank {
  const CopyOrder& order;
  std::shared_ptr<ShardCopies> source;
  std::vector<std::unique_ptr<os::File>> opened;  // By member; in the target.
};

Task<void> copy_chunk(CopyingRank& rank, std::size_t index) {
  CKPT_CO_CHECK(check_cancelled(rank.order));
  const format::Extent chunk = rank.source->record().chunk(index);
  PageBuffer memory(chunk.bytes);
  const std::span<std::byte> bytes = memory.first(chunk.bytes);
  const TransferHooks& hooks = rank.order.hooks;
  if (hooks.before_transfer) CKPT_CO_CHECK(co_await hooks.before_transfer(chunk.bytes));
  CKPT_CO_CHECK(co_await rank.source->read_chunk(index, bytes, hooks));
  const std::vector<FileSegment> segments = segments_of(chunk, rank.source->members());
  for (const FileSegment& segment : segments) {
    if (!segment.member || !rank.opened[*segment.member]) continue;
    const auto part = bytes.subspan(segment.extent.offset - chunk.offset, segment.extent.bytes);
    CKPT_CO_CHECK(co_await rank.opened[*segment.member]->write_at(segment.file_offset, part));
  }
  if (rank.order.done) rank.order.done(chunk.bytes, false);
  co_return Status();
}

// A file cannot be created over another one. An object can, and must not be missed in between: the
// copy beside this one may have published it.
Task<void> make_way(Site target, std::string path) {
  if (target.objects() != nullptr) co_return Status();
  Status removed = co_await target.files().remove_file(path);
  if (!removed && removed.error().code() == Errc::not_found) removed = Status();
  co_return removed;
}

Task<void> put_part(Site target, std::string path, std::vector<std::byte> part) {
  if (target.objects() != nullptr) {
    const os::PutCondition replace(os::PutMode::replace);
    Status put = co_await target.objects()->put_small(path, std::move(part), replace);
    co_return put;
  }
  Status written = co_await target.files().write_small(path, std::move(part));
  co_return written;
}

// Step 3, for a rank that is not there yet, or not as a whole. Its part is written last.
Task<void> copy_rank(Site target, const CopyOrder& order, std::string directory, Record record) {
  const std::string part_name = format::part_name(record->id.rank);
  const bool has_part = !order.manifest->shards[record->id.rank].embedded;
  if (has_part) CKPT_CO_CHECK(co_await make_way(target, os::join(directory, part_name)));
  CopyingRank rank{order, nullptr, {}};
  const format::ManifestShard& shard = order.manifest->shards[record->id.rank];
  const std::vector<StepCopy> sources = sources_of(order);
  const std::vector<ShardPlace> places = places_of(sources, shard.rank);
  CKPT_CO_TRY(rank.source, co_await ShardCopies::open(target.files(), places, record));
  for (std::size_t index = 0; index < rank.source->members().size(); ++index) {
    const std::string path = os::join(directory, shard.files[index].name);
    CKPT_CO_CHECK(co_await make_way(target, path));
    if (shard.files[index].table) {  // Its Chunks are read below, and their checksums compared.
      CKPT_CO_CHECK(co_await copy_packed_from(target.files(), places, index, path, order.hooks));
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
  // It was read before, and may have changed.
  CKPT_CO_TRY(auto part, co_await read_part_of(target.files(), sources, shard.rank));
  Status written = co_await put_part(target, os::join(directory, part_name), std::move(part));
  co_return written;
}

// Step 3: whether an earlier copy has finished the rank. Every byte is read.
Task<bool> is_rank_there(Site target, const CopyOrder& order, std::string directory,
                         Record record) {
  if (order.manifest->shards[record->id.rank].embedded) co_return false;
  auto manifest = std::make_shared<const format::Manifest>(in_folder(order, ""));
  const auto there = co_await read_record(target.files(), directory, manifest, record->id.rank);
  if (!there) co_return false;
  const ShardPlace place(directory, order.manifest->shards[record->id.rank].files);
  const auto copied = co_await ShardFiles::open(target.files(), place, record);
  if (!copied) co_return false;
  for (std::size_t index = 0; index < record->chunk_crcs.size(); ++index) {
    CKPT_CO_CHECK(check_cancelled(order));
    PageBuffer memory(record->chunk(index).bytes);
    const std::span<std::byte> bytes = memory.first(record->chunk(index).bytes);
    const Status read = co_await (*copied)->read_chunk(index, bytes, order.hooks);
    if (!read) co_return false;
  }
  (void)co_await (*copied)->close();
  co_return true;
}

// Step 3. `directory` is the attempt's.
Task<void> copy_ranks(Site target, const CopyOrder& order, std::string directory) {
  const std::vector<StepCopy> sources = sources_of(order);
  for (std::uint32_t rank = 0; rank < order.manifest->world_size; ++rank) {
    CKPT_CO_TRY(const Record record, co_await read_record_of(target.files(), sources, rank));
    CKPT_CO_TRY(const bool is_there, co_await is_rank_there(target, order, directory, record));
    if (is_there && order.done) order.done(record->bytes, true);
    if (!is_there) CKPT_CO_CHECK(co_await copy_rank(target, order, directory, record));
    CKPT_CO_CHECK(check_cancelled(order));  // All of a small rank's Chunks were on their way.
  }
  co_return Status();
}

// The source's manifest, once more: the job may have saved the step again.
Task<std::vector<std::byte>> read_manifest_again(Site target, const CopyOrder& order) {
  CKPT_CO_TRY(auto text, co_await target.files().read_small(
                             os::join(order.sources.front().place(), format::manifest_name),
                             format::manifest_bytes_max));
  const std::string_view view(reinterpret_cast<const char*>(text.data()), text.size());
  CKPT_CO_TRY(const format::Manifest again, format::parse_manifest(view));
  if (describe(again, {}).digests != describe(*order.manifest, {}).digests) {
    co_return fail(Errc::unavailable,
                   copy_label(order) + ": its job has saved it again meanwhile; copy again");
  }
  co_return text;
}

// Steps 3 and 4.
Task<void> fill(Site target, const CopyOrder& order, std::string work_name) {
  const std::string directory = target.at(work_name);
  CKPT_CO_CHECK(co_await take_work_directory(target, order, work_name));
  const std::string manifest_path = os::join(directory, format::manifest_name);
  CKPT_CO_CHECK(co_await make_way(target, manifest_path));
  CKPT_CO_CHECK(co_await copy_ranks(target, order, directory));
  CKPT_CO_TRY(auto text, co_await read_manifest_again(target, order));
  const bool has_folders = std::ranges::any_of(
      order.manifest->shards, [](const auto& shard) { return !shard.folder.empty(); });
  if (has_folders) {  // It was in a bucket: here the files lie beside the manifest.
    CKPT_CO_TRY(const std::string own, format::render(in_folder(order, "")));
    const auto bytes = std::as_bytes(std::span(own));
    text.assign(bytes.begin(), bytes.end());
  }
  CKPT_CO_CHECK(co_await target.files().write_small(manifest_path, std::move(text)));
  Status synced = co_await target.files().sync_directory(directory);
  co_return synced;
}

// The name of this checkpoint's attempt in a bucket: the first one that nobody has discarded. A
// discarder that died leaves its mark, and then nothing is ever published under that name.
Task<std::string> choose_attempt(Site target, const CopyOrder& order) {
  constexpr std::uint64_t attempts_max = 100;
  for (std::uint64_t number = 0; number < attempts_max; ++number) {
    std::string work = work_directory_name(order.manifest->at, copy_attempt_of(order, number));
    const std::string mark = os::join(attempt_path(target, work), discarded_name);
    const auto there = co_await target.files().status(mark);
    if (!there && there.error().code() == Errc::not_found) co_return work;
    if (!there) co_return fail(Error(there.error()));
  }
  co_return fail(Errc::exhausted,
                 fmt::format("{} to {}: {} discarded attempts of it are left there: `ckpt gc` "
                             "removes them",
                             copy_label(order), target.directory(), attempts_max));
}

// Steps 3 to 5, in a bucket.
Task<void> copy_to_bucket(Site target, const CopyOrder& order) {
  const format::Manifest& manifest = *order.manifest;
  if (manifest.shards.front().embedded) {
    co_return fail(Errc::unsupported,
                   copy_label(order) + ": it has the first format, which only directories have");
  }
  CKPT_CO_TRY(const std::string work, co_await choose_attempt(target, order));
  const std::string directory = attempt_path(target, work);
  CKPT_CO_CHECK(co_await copy_ranks(target, order, directory));
  CKPT_CO_CHECK(co_await read_manifest_again(target, order));
  const std::string folder = shard_folder(parse_work_directory(work).value(), 0);
  PublishOrder publish;
  publish.work_name = work;
  publish.job = manifest.job;
  publish.run = manifest.run;
  publish.at = manifest.at;
  publish.world_size = manifest.world_size;
  publish.is_copy = true;
  auto own = std::make_shared<const format::Manifest>(in_folder(order, folder));
  CKPT_CO_CHECK(co_await add_history(target, order));
  CKPT_CO_CHECK(co_await publish_in_bucket(target, std::move(publish), std::move(own)));
  const Status aborted = co_await abort_uploads(target, directory);
  if (!aborted) log_warning("storage: {}: {}", copy_label(order), aborted.error().message());
  co_return Status();
}

// Step 5. Nobody could restore it any more.
Task<void> remove_abandoned(Site target, const CopyOrder& order, const format::Timelines& timelines,
                            std::string name) {
  const auto standing = co_await read_manifest(target, name);
  if (!standing || !makes_way(order, timelines, **standing)) co_return Status();
  const std::string reason = fmt::format("saved again in timeline {}", order.manifest->at.timeline);
  Status removed =
      co_await remove_checkpoint(target, describe(**standing, name), order.manifest->run, reason);
  co_return removed;
}

// Step 6. Failures change nothing: the copy is durable.
Task<void> record_copy(Site target, const CopyOrder& order, std::string name) {
  Event event;
  event.operation = "copy";
  event.path = name;
  event.at = order.manifest->at;
  event.bytes = describe(*order.manifest, name).bytes;
  event.reason = "from " + (order.sources.empty() ? order.streamed_from
                                                  : os::display(order.sources.front().place()));
  const Status logged = co_await record_event(target, std::move(event));
  if (!logged) log_warning("storage: {}", logged.error().message());
  co_return Status();
}

// Also where the step was there before: the copy that put it there may have died in between.
Task<void> name_in_latest(Site target, std::string name, std::uint64_t attempt) {
  const auto read = co_await read_run_catalog(target);
  if (!read) co_return Status();
  const Checkpoint* const newest = newest_living(read->catalog);
  if (newest == nullptr || newest->name != name) co_return Status();
  const auto known = co_await read_latest(target);
  if (known && *known == name + "\n") co_return Status();
  const std::string aside = aside_name("." + std::string(latest_name), attempt);
  const Status pointed =
      co_await replace_file(target, std::string(latest_name), name + "\n", aside);
  if (!pointed) log_warning("storage: update `latest`: {}", pointed.error().message());
  co_return Status();
}

// Steps 1 to 5.
Task<Copied> put_copy(Site target, const CopyOrder& order) {
  Copied copied;
  copied.name = step_directory_name(order.manifest->at.step);

  CKPT_CO_TRY(const format::Timelines planned, co_await prepare_target(target, order));
  CKPT_CO_TRY(copied.was_there, co_await is_published(target, order, planned, copied.name));
  if (copied.was_there) {
    CKPT_CO_CHECK(co_await add_history(target, order));
    co_return copied;
  }

  if (target.objects() != nullptr) {
    Status done = co_await copy_to_bucket(target, order);
    if (!done) {  // The copy beside this one may have published it, and ended our uploads.
      const auto published = co_await is_published(target, order, planned, copied.name);
      copied.was_there = published && *published;
      if (!copied.was_there) co_return fail(std::move(done).error());
    }
    co_return copied;
  }

  // Steps 3 and 4.
  const std::string work =
      work_directory_name(order.manifest->at, copy_attempt_of(order, order.attempt));
  CKPT_CO_CHECK(co_await fill(target, order, work));

  // Step 5.
  CKPT_CO_TRY(const format::Timelines timelines, co_await add_history(target, order));
  CKPT_CO_CHECK(co_await remove_abandoned(target, order, timelines, copied.name));
  constexpr auto no_replace = os::RenameMode::no_replace;
  CKPT_CO_CHECK(
      co_await target.files().rename(target.at(work), target.at(copied.name), no_replace));
  CKPT_CO_CHECK(co_await target.files().sync_directory(target.at(".")));
  co_return copied;
}

}  // namespace

Task<Copied> copy_checkpoint(Site target, CopyOrder order) {
  CKPT_ASSERT(order.manifest != nullptr);
  CKPT_CO_TRY(Copied copied, co_await put_copy(target, order));
  if (!copied.was_there) CKPT_CO_CHECK(co_await record_copy(target, order, copied.name));
  CKPT_CO_CHECK(co_await name_in_latest(target, copied.name, order.attempt));
  co_return copied;
}

}  // namespace ckpt::storage
