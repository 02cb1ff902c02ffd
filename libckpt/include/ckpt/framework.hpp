// FrameworkCheckpointer: a Checkpointer with the calls that adapters need, for a framework or for
// another language.
//
// An adapter finds out late what a step consists of: it registers whole files, asks whether a step
// is due before it collects the state, judges captures, and chooses where a restore's tensors go.
//
// Threads, lifetime: as Checkpointer.
#pragma once

#include <chrono>
#include <ckpt/checkpointer.hpp>
#include <ckpt/export.hpp>
#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt {

// StoredTensor: one tensor of a step that is about to be restored. Borrowed for the call.
struct StoredTensor {
  std::string_view name;
  DType dtype = DType::u8;
  std::span<const std::int64_t> shape;
  std::string_view alias_of;  // Tied: the name that holds the bytes.
};

// ChooseTargets: takes what a step holds, and returns where its tensors go; the others are left
// out. Called on the training thread, once for each copy of the step that is tried.
using ChooseTargets =
    std::function<Result<std::vector<NamedTensor>>(Step, std::span<const StoredTensor>)>;

class CKPT_EXPORT FrameworkCheckpointer final : public Checkpointer {
 public:
  // Errors: those of Checkpointer::open.
  static Result<FrameworkCheckpointer> open(Options options);

  // Registers a file of its own in each checkpoint: a zip archive that stock torch.load opens, with
  // these entries in this order. The pickle among them is opaque here: the caller made it. A
  // restore knows the entries as tensors called "NAME//ENTRY"; remove() takes the archive's name.
  // Errors: invalid_argument (as add; an archive of this name), exhausted (more than
  // `archives_max`).
  Status add_archive(std::string name, std::span<const NamedTensor> entries);

  // As add_blob, for state whose size varies: the bytes are copied now, and read back with blob().
  Status set_blob(std::string name, std::span<const std::byte> bytes);
  std::optional<std::span<const std::byte>> blob(std::string_view name) const;

  // As prepare, without waiting; also for more room than a restore that follows will fill.
  Status prepare_in_background();

  // Whether save_checkpoint_if_needed() would try to capture `step`. False counts as that call with
  // the outcome `not_due`. A trainer that has to collect its state before a save asks this first.
  // A step that save_checkpoint_if_needed() would refuse is due: the save returns the error.
  // Errors: invalid_argument (closed).
  Result<bool> is_due(Step step);

  // For a framework that counts writes, and so can judge whether guarded tensors were written in
  // spite of it all. While `on_copied` is set, a capture stays here until settle() has judged it;
  // one that the next call finds without a verdict is dropped. `on_copied` is called when the last
  // byte was copied, on any thread, and must neither wait nor call the Checkpointer.
  // Errors: those of guard, for the capture that runs.
  Status hold_captures(std::function<void(Step)> on_copied);
  // The verdict on a held capture, given after `on_copied` or after guard(): when it is an error,
  // the capture is dropped, counted as failed and logged with it. A verdict for any other step is
  // ignored.
  Status settle(Step step, Status verdict);

  // As restore, into what `choose` returns instead of what is registered. Blobs that were added are
  // not written, and all are read with blob(), also in `choose`. With `request.from` it reads the
  // shard of that `rank`, whatever number of ranks saved it; without it `rank` is ignored.
  Result<Restored> restore_chosen(RestoreRequest request, const ChooseTargets& choose,
                                  std::uint32_t rank = 0);

  // What `ckpt status --json` shows of this job, as JSON text: nodes, Slots, the level of each
  // step, what would be lost if each node died now. Empty when disabled. Errors: unavailable (the
  // daemon is away, or does not answer in time).
  Result<std::string> status(std::chrono::milliseconds deadline = std::chrono::milliseconds(1'000));

 private:
  using Checkpointer::Checkpointer;
};

}  // namespace ckpt
