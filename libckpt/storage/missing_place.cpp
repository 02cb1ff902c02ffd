#include "storage/missing_place.hpp"

namespace ckpt::storage {

Task<bool> is_missing(Site site) {
  if (site.objects() != nullptr) co_return false;
  const auto status = co_await site.files().status(site.at("."));
  if (status) co_return false;
  if (status.error().code() == Errc::not_found) co_return true;
  co_return fail(Error(status.error()));
}

}  // namespace ckpt::storage
