// FoundCheckpoint: the checkpoint that a path stands for, with its manifest, for tests.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "storage/run_directory.hpp"
#include "storage/search.hpp"

namespace ckpt::test {

struct FoundCheckpoint {
  std::string directory;
  std::shared_ptr<const format::Manifest> manifest;
  std::vector<std::string> passed_over;
};

// The first candidate. Errors: those of storage::find_candidates and of its manifest.
inline Task<FoundCheckpoint> find_checkpoint(storage::Site site) {
  CKPT_CO_TRY(storage::Candidates candidates, co_await storage::find_candidates(site));
  FoundCheckpoint found;
  found.directory = std::move(candidates.directories.front());
  found.passed_over = std::move(candidates.passed_over);
  // A path that is a checkpoint itself may be a link; nothing below it may be one.
  const bool is_itself = found.directory == site.directory();
  const std::string directory = is_itself ? site.at(".") : found.directory;
  CKPT_CO_TRY(found.manifest, co_await storage::read_manifest_at(site.files(), directory));
  co_return found;
}

}  // namespace ckpt::test
