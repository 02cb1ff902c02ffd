#include "storage/place_check.hpp"

#include "format/manifest.hpp"
#include "storage/run_directory.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

Task<void> check_there(Site site) {
  const auto there = co_await site.files().status(site.at("."));
  if (!there) co_return fail(Error(there.error()));
  co_return Status();
}

Task<bool> is_checkpoint(Site site) {
  const auto manifest = co_await site.files().status(site.at(format::manifest_name));
  if (!manifest && manifest.error().code() != Errc::not_found) co_return fail(manifest.error());
  co_return manifest.has_value();
}

Task<void> prove_writable(Site site, std::uint64_t attempt) {
  if (site.objects() != nullptr) {
    Status proven = co_await prove_conditions(site, attempt);
    co_return proven;
  }
  const std::string path = site.at(aside_name(".ckpt-doctor", attempt));
  std::vector<std::byte> bytes(1);
  CKPT_CO_CHECK(co_await site.files().write_small(path, std::move(bytes)));
  CKPT_CO_CHECK(co_await site.files().remove_file(path));
  co_return Status();
}

Task<os::Space> room_in(Site site) {
  auto space = co_await site.files().space(site.directory());
  co_return space;
}

}  // namespace ckpt::storage
