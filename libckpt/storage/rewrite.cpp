// How a rank's files are replaced:
//   1. The manifest must name the record of the Slot. The old table says in which order the
//   frames of a compressed file were written.
//   2. Files of an earlier attempt are removed. The new ones are written under other names.
//   3. The new part must have the seal that the manifest has: so each byte is as it was published.
//   4. They are put in the places of the old ones, the part last (replacement.hpp).
#include "storage/rewrite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/assert.hpp"
#include "format/shard_part.hpp"
#include "os/path.hpp"
#include "storage/attempt.hpp"
#include "storage/catalog.hpp"
#include "storage/packed_file.hpp"
#include "storage/part_reader.hpp"
#include "storage/replacement.hpp"

namespace ckpt::storage {

namespace {

std::string rewrite_label(const format::ShardRecord& record, std::string_view name) {
  return fmt::format("write the files of rank {} in {} anew", record.id.rank, name);
}

// Steps 2 and 3.
Task<void> write_aside(Site site, std::string directory, format::ManifestShard shard,
                       ShardToWrite source, TransferHooks hooks) {
  const std::string part =
      path_in_attempt(site.files(), directory, format::part_name(shard.rank), source.turn);
  std::string what = rewrite_label(*source.record, directory);
  CKPT_CO_TRY(const auto written,
              co_await write_shard(site.files(), std::move(source), directory, std::move(hooks)));
  CKPT_ASSERT(written.digest == shard.record_digest);
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

}  // namespace

Task<void> rewrite_shard(Site site, std::string name, ShardToWrite source, TransferHooks hooks) {
  CKPT_ASSERT(source.turn != 0);
  const std::string what = rewrite_label(*source.record, name);

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
  Replacement::Target target{site.at(name), describe(*manifest, {}), source.turn, site.compute()};
  Replacement replacement(site.files(), std::move(target));
  CKPT_CO_CHECK(co_await replacement.begin_rank(shard));
  for (std::size_t member = 0; member < shard.files.size(); ++member)
    replacement.add_member(shard, member);
  replacement.add_part(shard);
  Status done = co_await write_aside(site, directory, shard, std::move(source), std::move(hooks));

  // Step 4.
  if (done) done = co_await replacement.put_in_place();
  CKPT_CO_CHECK(co_await replacement.clean_up());
  if (!done) co_return fail(std::move(done).error().context(what));
  co_return Status();
}

}  // namespace ckpt::storage
