// Checkpointer: the training process's only handle on libckpt.
//
// It copies the registered tensors into a Slot that the node's daemon owns, and returns. The daemon
// flushes and replicates that Slot while training goes on, and keeps it if we die.
//
//   open -> add* -> restore -> (save_checkpoint_if_needed -> guard)* -> close
//
// Threads:   one thread at a time (the training thread).
// Lifetime:  registered tensors must keep their address until close().
#pragma once

#include <chrono>
#include <ckpt/export.hpp>
#include <ckpt/options.hpp>
#include <ckpt/outcome.hpp>
#include <ckpt/progress.hpp>
#include <ckpt/result.hpp>
#include <ckpt/stats.hpp>
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

// ChooseTargets: told what a step holds, answers where its tensors go; what is not chosen is left
// out. Called on the training thread, once for each copy of the step that is tried.
using ChooseTargets =
    std::function<Result<std::vector<NamedTensor>>(Step, std::span<const StoredTensor>)>;

class CKPT_EXPORT Checkpointer {
 public:
  // Connects to the node's daemon, starting one if none runs. A process has one Checkpointer for
  // each job and rank at a time.
  // Errors: invalid_argument (an option; this process has the job's rank open already), unavailable
  //         (no daemon in time), version_mismatch.
  static Result<Checkpointer> open(Options options);

  Checkpointer(Checkpointer&&) noexcept;
  Checkpointer& operator=(Checkpointer&&) noexcept;
  // As a death of the trainer: the daemon keeps what it holds. What an embedded engine holds goes.
  ~Checkpointer();

  // Registers a tensor under a unique name. Two names with the same bytes are tied: stored once.
  // Tensors may be added, and removed, between saves; that makes a new version of the Layout.
  // The first tensor on a GPU loads its driver.
  // Errors: invalid_argument (duplicate name, strided view, null data, unknown location, or not the
  //         memory of that GPU), unsupported (no GPU, no driver, or a build without GPU support).
  Status add(std::string name, TensorRef tensor);
  Status remove(std::string_view name);

  // Registers a file of its own in each checkpoint: a zip archive that stock torch.load opens, with
  // these entries in this order. The pickle among them is opaque here: the caller made it. A
  // restore knows the entries as tensors called "NAME//ENTRY"; remove() takes the archive's name.
  // Errors: invalid_argument (as add; an archive of this name), exhausted (more than
  // `archives_max`).
  Status add_archive(std::string name, std::span<const NamedTensor> entries);

  // Registers small state that is copied at every save, before it returns, and written back by
  // restore(): RNG state, data position. `bytes` keep their address and size.
  Status add_blob(std::string name, std::span<std::byte> bytes);
  // The same for state whose size varies: the bytes are copied now, and read back with blob().
  Status set_blob(std::string name, std::span<const std::byte> bytes);
  std::optional<std::span<const std::byte>> blob(std::string_view name) const;

  // Waits until the Slots for what is registered exist, for at most `open_deadline`. Optional: the
  // first save of a session does the same, and no other save ever waits. A restore that finds
  // something waits for them as long as `restore_deadline`.
  // Errors: exhausted (the budget is too small, with the numbers), unavailable (not in time; they
  //         are being made, and steps are skipped until then).
  Status prepare();
  // The same without waiting; also for more room than a restore that follows will fill.
  Status prepare_in_background();

  // Whether save_checkpoint_if_needed() would try to capture `step`. False counts as that call with
  // the outcome `not_due`. A trainer that has to collect its state before a save asks this first.
  // A step that save_checkpoint_if_needed() would refuse is due: the save returns the error.
  // Errors: invalid_argument (closed).
  Result<bool> is_due(Step step);

  // Starts a capture of `step` if the policy asks for one, ordered after all work already queued on
  // `stream`. Never waits for storage, network or a peer: with no free Slot it skips and counts.
  // A failure is returned, counted and logged, and leaves every earlier step as it was.
  // Errors: invalid_argument (a step that does not grow; a restore failed, see start_fresh),
  //         exhausted (the budget is too small),
  //         unsupported (`stream` is being captured into a CUDA graph: save outside of it),
  //         unavailable (the GPU is lost, or its copies do not end).
  Result<SaveOutcome> save_checkpoint_if_needed(Step step, Stream stream = {});
  // The same, due or not.
  Result<SaveOutcome> save(Step step, Stream stream = {});

  // Call before the next update of the tensors marked `guarded`: when it returns (host), or for
  // whatever is queued on `stream` after it (GPU), the bytes of the running capture have left them.
  // For tensors on a GPU it does not wait on the host, and lifts the limit `gpu_copy_rate`.
  Status guard(Stream stream = {});

  // For who can tell whether guarded tensors were written in spite of it all, as a framework can
  // that counts writes. While `on_copied` is set, a capture is told to nobody until settle() has
  // judged it; one that the next call finds without a verdict is dropped. `on_copied` hears that
  // the last byte was copied, on any thread, and must neither wait nor call the Checkpointer.
  // Errors: those of guard, for the capture that runs.
  Status hold_captures(std::function<void(Step)> on_copied);
  // The verdict on a held capture, given after `on_copied` or after guard(): when it is an error,
  // the capture is dropped, counted as failed and logged with it. Another step is no matter.
  Status settle(Step step, Status verdict);

  // Waits until `step`, or a newer one, has reached `level`. For `durable` it is stored at once,
  // whatever `save_storage_interval` says.
  // Errors: unavailable (the deadline passed), not_found (the step was skipped or given up),
  // invalid_argument (no such level; `durable` of a job without a directory).
  Status wait(Step step, Level level, std::chrono::milliseconds deadline);

  // Copies the newest step that all ranks can have into the registered tensors. All ranks call it;
  // all get the same step. Without one, not_found: train from the beginning. It comes after all
  // work that is queued on the GPUs, and is done when it returns.
  // Errors: not_found, invalid_argument (names or shapes differ), corruption (no good copy left),
  //         unavailable (a rank did not ask in time), unsupported (another world size).
  Result<Restored> restore();
  // That step and no other. Without it not_found, too, but there may be others: a session that has
  // not trained yet saves nothing then until a restore succeeds, or start_fresh() is called.
  Result<Restored> restore(Step step);
  // The same into what `choose` answers, instead of what is registered; blobs that were added are
  // not written, and all are read with blob(), also in `choose`.
  Result<Restored> restore(std::optional<Step> step, const ChooseTargets& choose);
  // From a published checkpoint of any run, or a directory of them: no daemon, no agreement.
  Result<Restored> restore_from(std::string_view path);
  // The shard of any rank of one, whatever number of ranks saved it, into what `choose` answers.
  Result<Restored> restore_from(std::string_view path, std::uint32_t rank,
                                const ChooseTargets& choose);
  // Restores from now on tell `watch` how far they are; an empty one ends it.
  Status watch_restores(RestoreWatch watch);

  // Begins without what is stored: a new timeline from the tensors as they are. The first save of a
  // session does it by itself, but not after a restore that failed, unless nothing was found at
  // all: then saves are refused, since they would take the place of steps that may still be good.
  // All ranks call it, or none.
  // Errors: unavailable (ranks missing).
  Status start_fresh();

  // Tells that training got on after restore(): the step is not suspect. A committed step or an
  // orderly close() tells it, too. The call only queues it: of a process that is killed at once it
  // may not be heard. Errors: invalid_argument (not the step that this session restored last).
  Status restored_ok(Step step);

  Stats stats() const;
  // What `ckpt status --json` tells of this job, as JSON text: nodes, Slots, the level of each
  // step, what would be lost if each node died now. Empty when disabled. Errors: unavailable (the
  // daemon is away, or does not answer in time).
  Result<std::string> status(std::chrono::milliseconds deadline = std::chrono::milliseconds(1'000));

  // Flushes the newest committed step and frees this job's memory on the node. Idempotent.
  // Errors: unavailable (not done in time; the daemon goes on with it), not_found (closed, but the
  //         newest step had died with its daemon, and nothing newer could be flushed; or not one of
  //         the steps that were due could be captured).
  Status close(std::chrono::milliseconds deadline = std::chrono::milliseconds(60'000));

 private:
  class Impl;
  explicit Checkpointer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckpt
