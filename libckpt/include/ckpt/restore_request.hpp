// RestoreRequest: a trainer's request to restore.
#pragma once

#include <ckpt/outcome.hpp>
#include <ckpt/progress.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ckpt {

// RestoreRequest: which step to restore; by default the newest one that all ranks can have.
struct RestoreRequest {
  std::optional<Step> step = std::nullopt;  // This step and no other.
  // Path of a published checkpoint of any run, of the directory of a run, or of a parent of such
  // directories: the newest whole one there is taken. One line logs those passed over. A
  // single rank also passes over one whose bytes are damaged; several ranks fail instead, since
  // each reads other files. Needs no daemon and no agreement of the ranks. Excludes `step`, since
  // the path names the step. Any number of ranks may have saved it: each tensor is put together
  // from their pieces, and the blobs are those of this rank modulo their number.
  std::string from = {};
  // Only from the memory of the job's nodes, or only from its directory. If the other one has a
  // newer step, the restore abandons that, as a restore by number does. All ranks choose alike.
  // Excludes `from`, which names the place.
  SourceChoice source = SourceChoice::any;
  RestoreWatch watch = {};  // Called with the progress; may end the restore.
  // Names in the checkpoint, or their beginning up to a dot, a slash or the bracket of a part's
  // place, and what the registered tensors are called: {{"encoder", "backbone"}}. The longest of
  // several rules counts.
  std::vector<std::pair<std::string, std::string>> renamed = {};
  // Leaves what else the checkpoint has, blobs too: for training that begins with its weights.
  bool leaves_rest = false;
};

}  // namespace ckpt
