// CopyOrder: which checkpoint is copied, with which history.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "format/manifest.hpp"
#include "format/run_files.hpp"
#include "storage/member_writer.hpp"
#include "storage/open_step.hpp"

namespace ckpt::storage {

struct CopyOrder {
  // The checkpoint, then the same save elsewhere: damaged Chunks are read there. Empty: its Chunks
  // are streamed (copy_streamed.hpp).
  SaveCopies sources;
  std::string streamed_from;  // For people.
  std::shared_ptr<const format::Manifest> manifest;
  // The history that lies beside the source; null: there is none, and the copy begins one.
  std::shared_ptr<const format::Timelines> timelines;
  std::uint64_t attempt = 0;           // Random: for the names of temporary files.
  std::function<bool()> is_cancelled;  // Asked between Chunks. Empty: never.
  // Called after so many bytes more: copied, or found there.
  std::function<void(std::uint64_t bytes, bool was_there)> done;
  // For the copying: threads for checksums, bandwidth. `verified` is not called.
  TransferHooks hooks;
  // Steps abandoned by the history of both places are not copied, and make way for those that are.
  bool is_of_running_job = false;
};

// The attempt, for errors.
inline std::string copy_label(const CopyOrder& order) {
  return "copy step " + std::to_string(number(order.manifest->at.step));
}

}  // namespace ckpt::storage
