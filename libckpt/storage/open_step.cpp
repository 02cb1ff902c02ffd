#include "storage/open_step.hpp"

#include "storage/catalog.hpp"
#include "storage/member_reader.hpp"
#include "storage/part_reader.hpp"

namespace ckpt::storage {

using Record = std::shared_ptr<const format::ShardRecord>;

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

}  // namespace ckpt::storage
