// FrameworkCheckpointer: a Checkpointer with the calls that adapters need, for a framework or for
// another language.
//
// An adapter learns late which tensors a step has. It registers whole files, asks whether a step is
// due before it collects the state, judges captures, and chooses the targets of a restore.
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
  std::string_view alias_of;     // Tied: the name that holds the bytes.
  const Piece* piece = nullptr;  // Null: the whole tensor. A target must be the same part.
};

// The name of the tensor that a part of this name belongs to: "w" of "w[0:4,2:4]", if the piece
// lies there. Returns `name` for any other piece, also for one that does not fit the shape.
CKPT_EXPORT std::string tensor_name(std::string_view name, const Piece& piece, DType dtype,
                                    std::span<const std::int64_t> shape);

// ChooseTargets: gets the tensors of a step, and returns the targets of those to restore. Called on
// the training thread, once for each copy of the step that is tried.
using ChooseTargets =
    std::function<Result<std::vector<NamedTensor>>(Step, std::span<const StoredTensor>)>;

// A whole tensor T that rank 5 of another number of ranks saved is offered to a further rank as
// "libckpt.rank.5/T".
inline constexpr std::string_view other_rank_prefix = "libckpt.rank.";
// Names that begin so are an adapter's own: a rank that lacks one gets it from no other rank.
inline constexpr std::string_view adapter_prefix = "libckpt.";

class CKPT_EXPORT FrameworkCheckpointer final : public Checkpointer {
 public:
  // Errors: those of Checkpointer::open.
  static Result<FrameworkCheckpointer> open(Options options);

  // Adds a file to each checkpoint: a zip archive that stock torch.load opens, with these entries
  // in this order. The caller makes the pickle among them; libckpt does not look into it. A restore
  // sees the entries as tensors named "NAME//ENTRY"; remove() takes the archive's name.
  // Errors: invalid_argument (as add; an archive of this name), exhausted (more than
  // `archives_max`).
  Status add_archive(std::string name, std::span<const NamedTensor> entries);

  // Names registered tensors that are not trained, in place of those of the last call. With
  // skip_unchanged they lie apart from what changes, and captures of a GPU look whether they have
  // changed, even if they are guarded. A hint: where it is wrong, more bytes are sent, and copies
  // take longer. Errors: invalid_argument (closed).
  Status set_frozen(std::span<const std::string> names);

  // Like add_blob, for state whose size varies: copies the bytes now; blob() reads them back.
  Status set_blob(std::string name, std::span<const std::byte> bytes);
  std::optional<std::span<const std::byte>> blob(std::string_view name) const;

  // Waits for at most `open_deadline` until the Slots for the registered tensors exist. Optional:
  // the first save does the same, no later one waits, and a restore waits for `restore_deadline`.
  // Errors: exhausted (the budget is too small; the text has the numbers), unavailable (not yet).
  Status prepare();
  // Like prepare, but does not wait, and leaves `exhausted` to the first save: a restore that
  // follows may need less room.
  Status prepare_in_background();

  // Whether save_checkpoint_if_needed() would try to capture `step`: for a trainer that has to
  // collect its state before a save. False counts as that call with the outcome `not_due`. A step
  // that the save would refuse counts as due, so that the save returns the error.
  // Errors: invalid_argument (closed).
  Result<bool> is_due(Step step);

  // For a framework that counts writes, and so can detect writes to guarded tensors during the
  // copy. While `on_copied` is set, each capture is held back until settle() judges it. The next
  // save, prepare, restore, remove or close drops a capture without a verdict. `on_copied` is
  // called on any thread when the last byte is copied. It must neither wait nor call the
  // Checkpointer.
  // Errors: those of guard, for the capture that runs.
  Status hold_captures(std::function<void(Step)> on_copied);
  // Judges a held capture; call it after `on_copied` or after guard(). An error drops the capture,
  // counts it as failed and is logged. A verdict for any other step is ignored.
  Status settle(Step step, Status verdict);

  // Like restore, but into the targets that `choose` returns. Leaves the blobs of add_blob as they
  // are; blob() returns all others, also inside `choose`. If another number of ranks saved the
  // step, `choose` gets the registered pieces, the whole tensors of the shard rank % saved_by, and
  // those of the shards rank + n, rank + 2n, ..., where n is the number of ranks now; and an empty
  // part of each larger tensor that these shards have a piece of and that is not registered. With
  // `request.from` it reads the shard of `rank`, whatever number of ranks saved it; otherwise
  // `rank` is ignored.
  Result<Restored> restore_chosen(RestoreRequest request, const ChooseTargets& choose,
                                  std::uint32_t rank = 0);

  // Reports that the state of `step`, which was due, could not be collected. Counts as a save that
  // failed: once training has begun, no other rank waits for the step, and close() knows that it is
  // missing. The caller logs it. Errors: invalid_argument (closed).
  Status give_up(Step step, std::string why);

  // Returns what `ckpt status --json` shows for this job, as JSON text: nodes, Slots, the level of
  // each step, the loss if each node died now. Empty when disabled. Errors: unavailable (the daemon
  // is away, or does not answer in time).
  Result<std::string> status(std::chrono::milliseconds deadline = std::chrono::milliseconds(1'000));

 private:
  using Checkpointer::Checkpointer;
};

}  // namespace ckpt
