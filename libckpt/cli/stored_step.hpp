// StoredStep: a checkpoint on storage with all that is known of its tensors, for `inspect`,
// `export` and `diff`.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "format/manifest.hpp"
#include "gather/known_shards.hpp"
#include "gather/stored_shards.hpp"
#include "gather/tensor_list.hpp"

namespace ckpt::cli {

struct StoredStep {
  std::string directory;  // For people.
  std::shared_ptr<const format::Manifest> manifest;
  std::unique_ptr<gather::StoredShards> files;
  std::shared_ptr<gather::KnownShards> shards;  // Reads from `files`.
  std::vector<gather::ListedTensor> tensors;    // In the order of gather::list_tensors.
};

// `path`: a checkpoint, or a directory of them, of which the newest whole one is taken that no
// restore has abandoned. Errors: not_found (says what to do), corruption, io.
Task<std::shared_ptr<StoredStep>> open_stored_step(os::FileSystem& files, Clock& clock,
                                                   std::string path);

// "step 900 of job gpt2, 8 ranks".
std::string title_of(const format::Manifest& manifest);

// Returns `error`, or says instead that the job has removed the checkpoint meanwhile.
Task<void> explain(os::FileSystem& files, std::shared_ptr<StoredStep> step, Error error);

}  // namespace ckpt::cli
