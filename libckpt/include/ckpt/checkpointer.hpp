// Checkpointer: the training process's only handle on libckpt.
//
// A save copies the registered tensors into a Slot, memory that the node's daemon owns. The daemon
// flushes and replicates the Slot while training goes on, and keeps it if the trainer dies.
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
#include <ckpt/restore_request.hpp>
#include <ckpt/result.hpp>
#include <ckpt/stats.hpp>
#include <ckpt/tensor.hpp>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace ckpt {

// The state of the job as a whole, such as the step, the scheduler or the arguments, is the same on
// all ranks, so that any rank of any world may have it.
inline constexpr std::string_view common_blob_prefix = "libckpt.common/";

class CKPT_EXPORT Checkpointer {
 public:
  // Connects to the node's daemon, starting one if none runs. A process has at most one open
  // Checkpointer per job and rank.
  // Errors: invalid_argument (an option; this process has this rank open already), unavailable (no
  //         daemon in time), version_mismatch.
  static Result<Checkpointer> open(Options options);

  Checkpointer(Checkpointer&&) noexcept;
  Checkpointer& operator=(Checkpointer&&) noexcept;
  // As if the trainer died: the daemon keeps its Slots; the memory of an embedded engine is lost.
  ~Checkpointer();

  // Registers a tensor under a unique name. Two names for the same bytes are tied: the bytes are
  // stored once. Tensors may be added and removed between saves, which makes a new version of the
  // Layout. The first tensor on a GPU loads the driver.
  // Errors: invalid_argument (duplicate name, strided view, null data, unknown location, or not the
  //         memory of that GPU), unsupported (no GPU, no driver, or a build without GPU support).
  Status add(std::string name, TensorRef tensor);
  Status remove(std::string_view name);

  // Registers small state: RNG state, data position. Each save copies it before it returns, and
  // restore() writes it back. `bytes` must keep their address and size. It is this rank's, unless
  // its name begins with `common_blob_prefix`: a save to storage reports ranks whose bytes differ.
  // Another number of ranks gets those of rank % saved_by: what all of them want, each one adds.
  Status add_blob(std::string name, std::span<std::byte> bytes);

  // A number that describes the next save, such as its validation loss: `keep_best` chooses by it.
  // The next call of either save takes all that were set, also if its step is not due. Those of
  // rank 0 count; one that is not finite is ignored. Errors: invalid_argument (the name), exhausted
  // (more than 32).
  Status set_metric(std::string_view name, double value);

  // Starts a capture of `step` if the policy asks for one, ordered after all work already queued on
  // `stream`. Never waits for storage, network or a peer: without a free Slot it skips the step and
  // counts it. The first save alone waits, for `open_deadline` at most, until Slots are made. A
  // failure is returned, counted and logged, and leaves every earlier step as it was.
  // Errors: invalid_argument (the step does not grow; a restore is missing or failed, see
  //         start_fresh), exhausted (the budget is too small), unsupported (`stream` is captured
  //         into a CUDA graph: save outside of it), unavailable (the GPU is lost or hangs).
  Result<SaveOutcome> save_checkpoint_if_needed(Step step, Stream stream = {});
  // The same, whether the step is due or not. Waits up to `slot_wait` for a free Slot, also while
  // Slots are made: useful for the last step of a training, which no later step replaces.
  Result<SaveOutcome> save(Step step, Stream stream = {}, std::chrono::milliseconds slot_wait = {});

  // Call before the next update of the tensors marked `guarded`. When it returns, the running
  // capture has left host tensors, and GPU tensors before any work queued on `stream` later. For
  // these it lifts the limit `gpu_copy_rate`, and the GPU waits, not the host. The host waits, for
  // up to a minute, where memory cannot be pinned (a warning said so), or a graph is captured.
  Status guard(Stream stream = {});

  // Waits until `step`, or a newer one, has reached `level`. A wait for `durable` stores the step
  // at once, whatever `save_storage_interval` says.
  // Errors: unavailable (the deadline passed), not_found (at once: the step was skipped, given up,
  //         lost or never saved, or its save failed; the text says why), exhausted (no step can be
  //         stored), invalid_argument (no such level, or `durable` without a directory).
  Status wait(Step step, Level level, std::chrono::milliseconds deadline);

  // Copies a step into the registered tensors, after all work queued on the GPUs. All ranks call
  // it, and all get the same step. When nothing is stored it returns not_found: train from the
  // beginning. When only `request.step` is missing, other steps may exist: a session that has not
  // trained yet then refuses saves until a restore succeeds or start_fresh() is called. Any number
  // of ranks restores from memory what another one saved, and from storage what no memory has of
  // it; all of it from storage only with `request.from`.
  // Errors: not_found, invalid_argument (names or shapes differ), corruption (no good copy left),
  //         unavailable (a rank did not ask in time; only the place that `request.source` leaves
  //         out has a step), unsupported (for another number of ranks: a whole tensor that several
  //         saved, or the newest step lacks a part or is stored only).
  Result<Restored> restore(RestoreRequest request = {});

  // Ignores stored steps and starts a new timeline from the tensors as they are, in mid-training
  // too; any step may come next. All ranks call it, or none. The first save does the same where
  // there is nothing to restore. Otherwise it is refused until a restore succeeds or this is
  // called: it would replace steps that may be good.
  // Errors: unavailable (ranks missing).
  Status start_fresh();

  // Confirms that training works after restore(): the step is not suspect. A committed step or an
  // orderly close() confirms it, too. A message that is lost if the process is killed at once.
  // Errors: invalid_argument (not the step that this session restored last).
  Status restored_ok(Step step);

  Stats stats() const;

  // Flushes the newest committed step and frees this job's memory on the node. Idempotent. Without
  // a directory, a session that did not save leaves the memory as it is.
  // Errors: unavailable (not done in time, or another daemon owns the directory; the daemon goes
  //         on), not_found (closed, but the newest step was lost with its daemon and no newer one
  //         was stored; or steps were due and none was captured, or none by all ranks).
  Status close(std::chrono::milliseconds deadline = std::chrono::milliseconds(60'000));

 protected:
  class Impl;
  explicit Checkpointer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckpt
