#include "storage/open_step.hpp"

#include "base/assert.hpp"
#include "os/path.hpp"
#include "storage/catalog.hpp"
#include "storage/member_reader.hpp"
#include "storage/part_reader.hpp"

namespace ckpt::storage {

using Record = std::shared_ptr<const format::ShardRecord>;

namespace {

std::vector<StepCopy> paths_of(const SaveCopies& copies) {
  CKPT_ASSERT(!copies.empty());
  std::vector<StepCopy> paths;
  for (const OpenStep& each : copies) paths.push_back(each.copy());
  return paths;
}

}  // namespace

Task<OpenStep> OpenStep::in(Site site, std::string name) {
  StepCopy copy;
  copy.directory = site.at(name);
  CKPT_CO_TRY(copy.manifest, co_await read_manifest(site, std::move(name)));
  co_return OpenStep(std::move(site), std::move(copy));
}

Task<OpenStep> OpenStep::at(Site site) {
  StepCopy copy;
  copy.directory = site.directory();
  // A link may lead to it: only below it none is followed.
  std::string itself = os::join(copy.directory, ".");
  CKPT_CO_TRY(copy.manifest,
              co_await read_manifest_at(site.files(), std::move(itself), site.compute()));
  co_return OpenStep(std::move(site), std::move(copy));
}

OpenStep OpenStep::known(Site site, std::string_view name,
                         std::shared_ptr<const format::Manifest> manifest) {
  CKPT_ASSERT(manifest != nullptr);
  StepCopy copy{site.at(name), std::move(manifest)};
  return OpenStep(std::move(site), std::move(copy));
}

std::vector<std::vector<TensorFile>> tensor_files(const OpenStep& step) {
  std::vector<std::vector<TensorFile>> ranks;
  for (const format::ManifestShard& shard : step.manifest()->shards) {
    const std::string directory = shard_directory(step.place(), shard);
    std::vector<TensorFile>& own = ranks.emplace_back();
    for (const format::StoredFile& file : shard.files)
      if (file.kind != format::MemberKind::raw)
        own.push_back({file.archive, os::display(os::join(directory, file.name))});
  }
  return ranks;
}

Result<StepShard> shard_of(const OpenStep& step, std::uint32_t rank) {
  CKPT_TRY(const format::ManifestShard shard, format::shard_of(*step.manifest(), rank));
  return StepShard{step.site(), shard_place(step.place(), shard), shard.record_digest};
}

Task<Record> read_record(OpenStep step, std::uint32_t rank) {
  const Site& site = step.site();
  auto record =
      co_await read_record(site.files(), step.place(), step.manifest(), rank, site.compute());
  co_return record;
}

Task<void> read_shard(StepShard shard, Record record, std::span<std::byte> target,
                      TransferHooks hooks) {
  Status read = co_await read_shard(shard.site.files(), std::move(shard.files), std::move(record),
                                    target, std::move(hooks));
  co_return read;
}

Task<std::shared_ptr<ShardFiles>> open_files(StepShard shard, Record record) {
  auto opened =
      co_await ShardFiles::open(shard.site.files(), std::move(shard.files), std::move(record));
  co_return opened;
}

Task<PartExcerpt> find_tensors(OpenStep step, std::uint32_t rank, std::vector<std::string> names) {
  auto found = co_await find_tensors(step.site().files(), step.place(), step.manifest(), rank,
                                     std::move(names));
  co_return found;
}

Task<Record> read_record(SaveCopies copies, std::uint32_t rank) {
  auto record = co_await read_record_of(copies.front().site().files(), paths_of(copies), rank);
  co_return record;
}

Task<std::shared_ptr<ShardCopies>> open_shard(SaveCopies copies, Record record) {
  const std::uint32_t rank = record->id.rank;
  CKPT_CO_CHECK(format::shard_of(*copies.front().manifest(), rank));
  auto opened = co_await ShardCopies::open(copies.front().site().files(),
                                           places_of(paths_of(copies), rank), std::move(record));
  co_return opened;
}

Task<std::shared_ptr<ShardCopies>> open_shard(StepShard shard, Record record) {
  std::vector<ShardPlace> place{std::move(shard.files)};
  auto opened = co_await ShardCopies::open(shard.site.files(), std::move(place), std::move(record));
  co_return opened;
}

}  // namespace ckpt::storage
