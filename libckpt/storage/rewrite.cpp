// How a rank's files are replaced:
//   1. The manifest must name the record of the Slot. The old table says in which order the
//   frames of a compressed file were written.
//   2. Files of an earlier attempt are removed. The new ones are written under other names.
//   3. The new part must have the seal that the manifest has: so each byte is as it was published.
//   4. The files are renamed over the old ones, the part last, and the directory is synced. A
//   bucket has no rename: there the new objects are copied over the old ones, each whole at once.
#include "storage/rewrite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/assert.hpp"
#include "format/shard_part.hpp"
#include "storage/attempt.hpp"
#include "storage/catalog.hpp"
#include "storage/copy_packed.hpp"
#include "storage/packed_file.hpp"
#include "storage/part_reader.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

namespace {

std::string label(const format::ShardRecord& record, std::string_view name) {
  return fmt::format("write the files of rank {} in {} anew", record.id.rank, name);
}

std::vector<std::string> names_of(const format::ManifestShard& shard) {
  std::vector<std::string> names;
  for (const format::StoredFile& file : shard.files) names.push_back(file.name);
  names.push_back(format::part_name(shard.rank));
  return names;
}

Task<void> remove_from_bucket(Site site, std::string directory, format::ManifestShard shard,
                              std::uint32_t turn) {
  for (const std::string& name : names_of(shard)) {
    const Status removed =
        co_await site.files().remove_file(path_in_attempt(site.files(), directory, name, turn));
    if (!removed && removed.error().code() != Errc::not_found) co_return fail(removed.error());
  }
  co_return Status();
}

// Of all turns: nobody else writes files of this rank into a published checkpoint. What a death
// leaves in a bucket lies in the folder of the attempt, and goes with it.
Task<void> remove_turns(Site site, std::string directory, format::ManifestShard shard,
                        std::uint32_t turn) {
  if (site.objects() != nullptr) {
    Status removed = co_await remove_from_bucket(site, directory, std::move(shard), turn);
    co_return removed;
  }
  const std::uint32_t rank = shard.rank;
  CKPT_CO_TRY(const auto entries, co_await site.files().list(directory));
  for (const os::DirectoryEntry& entry : entries) {
    const std::string_view stem = without_turn(entry.name);
    const bool is_ours = stem != entry.name && format::is_name_of_rank(stem, rank);
    if (!is_ours || entry.kind != os::EntryKind::file) continue;
    CKPT_CO_CHECK(co_await site.files().remove_file(os::join(directory, entry.name)));
  }
  co_return Status();
}

// Steps 2 and 3.
Task<void> write_aside(Site site, std::string directory, format::ManifestShard shard,
                       ShardToWrite source, TransferHooks hooks) {
  const std::uint32_t turn = source.turn;
  CKPT_CO_CHECK(co_await remove_turns(site, directory, shard, turn));
  std::string what = label(*source.record, directory);
  CKPT_CO_TRY(const auto written,
              co_await write_shard(site.files(), std::move(source), directory, std::move(hooks)));
  CKPT_ASSERT(written.digest == shard.record_digest);
  const std::string part =
      path_in_attempt(site.files(), directory, format::part_name(shard.rank), turn);
  CKPT_CO_TRY(const SealedFront sealed, co_await read_front(site.files(), part));
  if (sealed.seal == shard.part && sealed.front.files == shard.files) co_return Status();
  co_return fail(Errc::invalid_argument, what + ": the new files are not those of its manifest");
}

bool is_packed(const format::StoredFile& file) {
  return file.table.has_value();
}

// Step 1, for compressed files: frames lie in a file in the order in which they became ready then.
Task<std::vector<std::size_t>> order_of_chunks(Site site, std::string directory,
                                               format::ManifestShard shard,
                                               std::shared_ptr<const format::ShardRecord> record) {
  std::vector<std::size_t> order;
  std::set<std::size_t> has;
  const auto take = [&](std::size_t chunk) {
    if (has.insert(chunk).second) order.push_back(chunk);
  };
  const std::vector<format::Extent> members = format::member_extents(*record);
  for (std::size_t member = 0; member < shard.files.size(); ++member) {
    if (!is_packed(shard.files[member])) continue;
    const std::string path = os::join(directory, shard.files[member].name);
    CKPT_CO_TRY(const auto file, co_await site.files().open_read(path, os::Caching::direct));
    const format::PackedShape shape{members.at(member), record->chunk_bytes};
    CKPT_CO_TRY(const auto reader, co_await PackedReader::open(*file, shard.files[member], shape));
    std::vector<std::pair<std::uint64_t, std::size_t>> places;
    for (std::size_t frame = 0; frame < reader->frames().size(); ++frame)
      places.emplace_back(reader->frames()[frame].offset, shape.first_chunk() + frame);
    std::ranges::sort(places);
    for (const auto& [offset, chunk] : places) take(chunk);
    (void)co_await file->close();  // The table has a seal.
  }
  for (std::size_t chunk = 0; chunk < record->chunk_crcs.size(); ++chunk) take(chunk);
  co_return order;
}

// Step 4, in a bucket.
Task<void> copy_over(Site site, std::string directory, format::ManifestShard shard,
                     std::uint32_t turn) {
  const TransferHooks no_hooks;
  for (const format::StoredFile& file : shard.files) {
    const std::string from = path_in_attempt(site.files(), directory, file.name, turn);
    CKPT_CO_CHECK(
        co_await copy_packed(site.files(), from, os::join(directory, file.name), file, no_hooks));
  }
  const std::string part = format::part_name(shard.rank);
  const std::string from = path_in_attempt(site.files(), directory, part, turn);
  CKPT_CO_TRY(auto bytes, co_await site.files().read_small(from, format::part_bytes_max));
  CKPT_CO_CHECK(format::decode_shard_part(bytes, shard.part));
  const os::PutCondition replace(os::PutMode::replace);
  Status put = co_await site.objects()->put_small(os::join(directory, part), bytes, replace);
  co_return put;
}

}  // namespace

Task<void> rewrite_shard(Site site, std::string name, ShardToWrite source, TransferHooks hooks) {
  CKPT_ASSERT(source.turn != 0);
  const std::string what = label(*source.record, name);

  // Step 1.
  CKPT_CO_TRY(const auto manifest, co_await read_manifest(site, name));
  const std::uint32_t rank = source.record->id.rank;
  CKPT_CO_TRY(const format::ManifestShard shard, format::shard_of(*manifest, rank));
  if (shard.embedded) co_return fail(Errc::unsupported, what + ": it is of version 1");
  if (shard.record_digest != format::digest_of(*source.record))
    co_return fail(Errc::invalid_argument, what + ": it holds another save of the step");

  const std::string directory = shard_directory(site.at(name), shard);
  if (std::ranges::any_of(shard.files, is_packed)) {
    if (!source.compression) source.compression.emplace();
    auto order = co_await order_of_chunks(site, directory, shard, source.record);
    if (!order) co_return fail(std::move(order).error().context(what));
    source.order = std::move(*order);
  } else {
    source.compression.reset();
  }

  // Steps 2 and 3.
  const std::uint32_t turn = source.turn;
  const Status aside =
      co_await write_aside(site, directory, shard, std::move(source), std::move(hooks));
  if (!aside) {
    const Status removed = co_await remove_turns(site, directory, shard, turn);
    Error error = Error(aside.error()).context(what);
    if (!removed) error = std::move(error).context("and its files stay: " + removed.error().text());
    co_return fail(std::move(error));
  }

  // Step 4.
  if (site.objects() != nullptr) {
    CKPT_CO_CHECK(co_await copy_over(site, directory, shard, turn));
    Status removed = co_await remove_turns(site, directory, shard, turn);
    co_return removed;
  }
  const std::vector<std::string> names = names_of(shard);
  for (const std::string& file : names) {
    const std::string from = os::join(directory, turn_name(file, turn));
    const std::string to = os::join(directory, file);
    CKPT_CO_CHECK(co_await site.files().rename(from, to, os::RenameMode::replace));
  }
  Status synced = co_await site.files().sync_directory(directory);
  co_return synced;
}

}  // namespace ckpt::storage
