// How a rank's files are replaced:
//   1. The manifest must name the record of the Slot.
//   2. Files of an earlier attempt are removed. The new ones are written under other names.
//   3. The new part must have the seal that the manifest has: so each byte is as it was published.
//   4. The files are renamed over the old ones, the part last, and the directory is synced.
#include "storage/rewrite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/assert.hpp"
#include "format/shard_part.hpp"
#include "storage/catalog.hpp"
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

// Of all turns: nobody else writes files of this rank into a published checkpoint.
Task<void> remove_turns(Site site, std::string directory, std::uint32_t rank) {
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
  CKPT_CO_CHECK(co_await remove_turns(site, directory, shard.rank));
  const std::uint32_t turn = source.turn;
  std::string what = label(*source.record, directory);
  CKPT_CO_TRY(const auto written,
              co_await write_shard(site.files(), std::move(source), directory, std::move(hooks)));
  CKPT_ASSERT(written.digest == shard.record_digest);
  const std::string part = os::join(directory, turn_name(format::part_name(shard.rank), turn));
  CKPT_CO_TRY(const SealedFront sealed, co_await read_front(site.files(), part));
  if (sealed.seal == shard.part && sealed.front.files == shard.files) co_return Status();
  co_return fail(Errc::invalid_argument, what + ": the new files are not those of its manifest");
}

}  // namespace

Task<void> rewrite_shard(Site site, std::string name, ShardToWrite source, TransferHooks hooks) {
  CKPT_ASSERT(source.turn != 0);
  const std::string what = label(*source.record, name);
  if (site.objects() != nullptr) co_return fail(Errc::unsupported, what + ": it is in a bucket");

  // Step 1.
  CKPT_CO_TRY(const auto manifest, co_await read_manifest(site, name));
  const std::uint32_t rank = source.record->id.rank;
  CKPT_CO_TRY(const format::ManifestShard shard, format::shard_of(*manifest, rank));
  if (shard.embedded) co_return fail(Errc::unsupported, what + ": it is of version 1");
  const auto is_packed = [](const format::StoredFile& file) { return file.table.has_value(); };
  if (std::ranges::any_of(shard.files, is_packed))
    co_return fail(Errc::unsupported, what + ": they are compressed");
  if (shard.record_digest != format::digest_of(*source.record))
    co_return fail(Errc::invalid_argument, what + ": it holds another save of the step");

  // Steps 2 and 3.
  const std::string directory = site.at(name);
  const std::uint32_t turn = source.turn;
  const Status aside =
      co_await write_aside(site, directory, shard, std::move(source), std::move(hooks));
  if (!aside) {
    const Status removed = co_await remove_turns(site, directory, rank);
    Error error = Error(aside.error()).context(what);
    if (!removed) error = std::move(error).context("and its files stay: " + removed.error().text());
    co_return fail(std::move(error));
  }

  // Step 4.
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
