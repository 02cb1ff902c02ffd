// StoredStep: a checkpoint on storage, or a step in the memory of a job, with all that is known of
// its tensors, for `inspect`, `export`, `diff` and `cp`.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/memory_step.hpp"
#include "cli/workplace.hpp"
#include "format/manifest.hpp"
#include "gather/known_shards.hpp"
#include "gather/stored_shards.hpp"
#include "gather/tensor_list.hpp"
#include "storage/open_step.hpp"

namespace ckpt::cli {

// StepCandidate: what may be read as one step: a checkpoint, or all that two places have of it.
struct StepCandidate {
  std::vector<storage::Site> places;  // Each is itself a step; never empty.
  std::size_t rank = 0;               // Its step's among all that may be taken; 0: the best.
};

struct StoredStep {
  std::string directory;  // For people.
  std::shared_ptr<const format::Manifest> manifest;
  // One of these two.
  std::unique_ptr<gather::StoredShards> files;
  std::unique_ptr<MemoryStep> memory;
  std::shared_ptr<gather::KnownShards> shards;  // Reads from it.
  std::vector<gather::ListedTensor> tensors;    // In the order of gather::list_tensors.
  // Itself, and its copies in other places, which have good what is damaged here. One: it was
  // whole, as far as it was read. Empty: it is in memory.
  storage::SaveCopies copies;
  std::vector<StepCandidate> others;  // Where else to look if it is damaged.
  bool is_older = false;              // A newer one is damaged, and no restore abandoned it.
};

// The site's directory: a checkpoint, one of checkpoints, two places, or a parent of runs. The
// newest is taken that no restore has abandoned, and whose descriptions are whole; one line in the
// log says what was passed over. Where both places have the step damaged, it is put together from
// both before an older one is taken, unless each of them lacks a file: then neither is a candidate.
// Or a step in memory (memory_step.hpp), of the daemon of `runtime_dir`. Errors: not_found (says
// what to do), corruption, io, and those of MemoryStep.
Task<std::shared_ptr<StoredStep>> open_stored_step(storage::Site site,
                                                   std::string runtime_dir = {});
// The next one after it, which turned out to be damaged. Errors: `why`, where none is left.
Task<std::shared_ptr<StoredStep>> open_next(std::shared_ptr<StoredStep> damaged, Error why);

// Says so in the outcome, and makes it one of trouble, if a newer step cannot be used.
void note_if_older(const StoredStep& step, Outcome& outcome);

// Lets `use` have the best step at the path, and the next one as long as damage shows.
template <class Use>
Result<Outcome> use_stored_step(Workplace& workplace, const std::string& path,
                                const std::string& runtime_dir, Use use) {
  CKPT_TRY(auto step, workplace.run(open_stored_step(workplace.site(path), runtime_dir)));
  while (true) {
    Result<Outcome> used = use(step);
    if (used) note_if_older(*step, *used);
    if (used || used.error().code() != Errc::corruption || step->others.empty()) return used;
    CKPT_TRY(step, workplace.run(open_next(step, Error(used.error()))));
  }
}

bool is_packed(const format::Manifest& manifest);  // Some file of it is compressed.
// "step 900 of job gpt2, 8 ranks".
std::string title_of(const format::Manifest& manifest);

// Returns `error`, or says instead that the job has removed the checkpoint meanwhile.
Error explain(Workplace& workplace, const StoredStep& step, Error error);

}  // namespace ckpt::cli
