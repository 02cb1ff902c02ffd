// remove_named: deletes a published checkpoint by its name, whatever lies there.
#pragma once

#include <string>

#include "storage/catalog.hpp"
#include "storage/removal.hpp"

namespace ckpt::test {

inline Task<void> remove_named(storage::Site site, std::string name, format::RunId run) {
  CKPT_CO_TRY(const auto manifest, co_await storage::read_manifest(site, name));
  Status removed =
      co_await storage::remove_checkpoint(site, storage::describe(*manifest, name), run, "a test");
  co_return removed;
}

}  // namespace ckpt::test
