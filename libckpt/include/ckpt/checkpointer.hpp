// Checkpointer: the training process's only handle on libckpt.
//
// It copies the registered tensors into a Slot that the node's daemon owns, and returns. The daemon
// flushes and replicates that Slot while training goes on, and keeps it if we die.
//
//   open -> add* -> restore -> (save_checkpoint_if_needed -> guard)* -> close
//
// Adapters for frameworks and other languages find more calls in <ckpt/framework.hpp>.
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
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ckpt {

// RestoreRequest: which step to restore; by default the newest one that all ranks can have.
struct RestoreRequest {
  std::optional<Step> step = std::nullopt;  // That step and no other.
  // A published checkpoint of any run, or a directory of them: no daemon, no agreement. It names
  // its step by itself.
  std::string from = {};
  RestoreWatch watch = {};  // Called with the progress, and may end the restore.
};

class CKPT_EXPORT Checkpointer {
 public:
  // Connects to the node's daemon, starting one if none runs. A process has one Checkpointer for
  // each job and rank at a time.
  // Errors: invalid_argument (an option; this process has the job's rank open already), unavailable
  //         (no daemon in time), version_mismatch.
  static Result<Checkpointer> open(Options options);

  Checkpointer(Checkpointer&&) noexcept;
  Checkpointer& operator=(Checkpointer&&) noexcept;
  // Like a death of the trainer: the daemon keeps what it holds; an embedded engine's memory goes.
  ~Checkpointer();

  // Registers a tensor under a unique name. Two names with the same bytes are tied: stored once.
  // Tensors may be added, and removed, between saves; that makes a new version of the Layout.
  // The first tensor on a GPU loads its driver.
  // Errors: invalid_argument (duplicate name, strided view, null data, unknown location, or not the
  //         memory of that GPU), unsupported (no GPU, no driver, or a build without GPU support).
  Status add(std::string name, TensorRef tensor);
  Status remove(std::string_view name);

  // Registers small state that is copied at every save, before it returns, and written back by
  // restore(): RNG state, data position. `bytes` keep their address and size.
  Status add_blob(std::string name, std::span<std::byte> bytes);

  // Waits until the Slots for what is registered exist, for at most `open_deadline`. Optional: the
  // first save of a session does the same, and no other save ever waits. A restore that finds
  // something waits for them as long as `restore_deadline`.
  // Errors: exhausted (the budget is too small, with the numbers), unavailable (not in time; they
  //         are being made, and steps are skipped until then).
  Status prepare();

  // Starts a capture of `step` if the policy asks for one, ordered after all work already queued on
  // `stream`. Never waits for storage, network or a peer: with no free Slot it skips and counts.
  // A failure is returned, counted and logged, and leaves every earlier step as it was.
  // Errors: invalid_argument (a step that does not grow; a restore failed, see start_fresh),
  //         exhausted (the budget is too small),
  //         unsupported (`stream` is being captured into a CUDA graph: save outside of it),
  //         unavailable (the GPU is lost, or its copies do not end).
  Result<SaveOutcome> save_checkpoint_if_needed(Step step, Stream stream = {});
  // The same, due or not. With `slot_wait` it waits so long for a free Slot: for the last step of a
  // training, which no later one replaces.
  Result<SaveOutcome> save(Step step, Stream stream = {}, std::chrono::milliseconds slot_wait = {});

  // Call before the next update of the tensors marked `guarded`: when it returns (host), or for
  // whatever is queued on `stream` after it (GPU), the bytes of the running capture have left them.
  // For tensors on a GPU it does not wait on the host, and lifts the limit `gpu_copy_rate`.
  Status guard(Stream stream = {});

  // Waits until `step`, or a newer one, has reached `level`. For `durable` it is stored at once,
  // whatever `save_storage_interval` says.
  // Errors: unavailable (the deadline passed), not_found (the step was skipped or given up),
  // invalid_argument (no such level; `durable` of a job without a directory).
  Status wait(Step step, Level level, std::chrono::milliseconds deadline);

  // Copies a step into the registered tensors, after all work that is queued on the GPUs. All ranks
  // call it, and all get the same step. Without one, not_found: train from the beginning. Without
  // the step that was named there may be others: a session that has not trained yet then saves
  // nothing until a restore succeeds, or start_fresh() is called.
  // Errors: not_found, invalid_argument (names or shapes differ), corruption (no good copy left),
  //         unavailable (a rank did not ask in time), unsupported (another world size).
  Result<Restored> restore(RestoreRequest request = {});

  // Begins without what is stored: a new timeline from the tensors as they are. The first save of a
  // session does it by itself, but not after a restore that failed, unless nothing was found at
  // all: then saves are refused, since they would take the place of steps that may still be good.
  // All ranks call it, or none.
  // Errors: unavailable (ranks missing).
  Status start_fresh();

  // Training got on after restore(): the step is not suspect. A committed step or an orderly
  // close() shows it, too. The call only queues the message, which is lost if the process is killed
  // at once. Errors: invalid_argument (not the step that this session restored last).
  Status restored_ok(Step step);

  Stats stats() const;

  // Flushes the newest committed step and frees this job's memory on the node. Idempotent.
  // Errors: unavailable (not done in time; the daemon goes on with it), not_found (closed, but the
  //         newest step had died with its daemon, and nothing newer could be flushed; or not one of
  //         the steps that were due could be captured).
  Status close(std::chrono::milliseconds deadline = std::chrono::milliseconds(60'000));

 protected:
  class Impl;
  explicit Checkpointer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckpt
