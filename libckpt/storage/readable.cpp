#include "storage/readable.hpp"

#include <fmt/format.h>

#include "storage/catalog.hpp"

namespace ckpt::storage {

namespace {

Task<void> check_file(Site site, std::string path) {
  auto opened = co_await site.files().open_read(path, os::Caching::buffered);
  if (opened) {
    (void)co_await (*opened)->close();  // Nothing was written.
    co_return Status();
  }
  if (!is_unreadable(opened.error().code())) co_return Status();
  co_return fail(Errc::unavailable, opened.error().message());
}

}  // namespace

Task<void> check_readable(Site site, std::string name,
                          std::shared_ptr<const format::Manifest> manifest) {
  if (site.objects() != nullptr) co_return Status();  // One who may list a bucket may read it.
  for (const format::ManifestShard& shard : manifest->shards) {
    const std::string directory = shard_directory(site.at(name), shard);
    if (!shard.embedded)
      CKPT_CO_CHECK(co_await check_file(site, os::join(directory, format::part_name(shard.rank))));
    for (const format::StoredFile& file : shard.files)
      CKPT_CO_CHECK(co_await check_file(site, os::join(directory, file.name)));
  }
  co_return Status();
}

}  // namespace ckpt::storage
