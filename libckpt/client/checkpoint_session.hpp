// CheckpointSession: the work of a Checkpointer. It puts the parts of a session together:
//
//   StepSchedule       which steps are captured
//   SlotReadiness      whether there are Slots for the registered tensors
//   RunningCapture     the capture that runs
//   RestoreStanding    the state of the restore, and so whether saves are allowed
//
// Invariants: the registered tensors, the Layout and the plan of copies only change between
//             captures.
// Threads:    the training thread.
#pragma once

#include <ckpt/framework.hpp>
#include <ckpt/options.hpp>
#include <ckpt/outcome.hpp>
#include <ckpt/result.hpp>
#include <ckpt/stats.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/units.hpp"
#include "client/blob_store.hpp"
#include "client/commit_watch.hpp"
#include "client/device_table.hpp"
#include "client/restore_copy.hpp"
#include "client/restore_standing.hpp"
#include "client/restore_teller.hpp"
#include "client/running_capture.hpp"
#include "client/save_account.hpp"
#include "client/save_metrics.hpp"
#include "client/session_link.hpp"
#include "client/slot_readiness.hpp"
#include "client/step_schedule.hpp"
#include "client/step_timer.hpp"
#include "client/storage_restore.hpp"
#include "client/tensor_registry.hpp"

namespace ckpt::client {

// Choice: restores into the tensors that `targets` returns. With `RestoreRequest::from` it reads
// the shard of `rank`.
struct Choice {
  const ChooseTargets& targets;
  std::uint32_t rank = 0;
};

class CheckpointSession {
 public:
  // `options` are resolved. `chunk_bytes` is smaller in tests.
  CheckpointSession(Options options, std::unique_ptr<SessionLink> link,
                    std::uint64_t chunk_bytes = default_chunk_bytes);
  ~CheckpointSession();
  CheckpointSession(const CheckpointSession&) = delete;
  CheckpointSession& operator=(const CheckpointSession&) = delete;

  // As in ckpt/checkpointer.hpp and ckpt/framework.hpp.
  Status add(std::string name, TensorRef tensor);
  Status add_archive(std::string name, std::span<const NamedTensor> entries);
  Status remove(std::string_view name);
  Status set_frozen(std::span<const std::string> names);
  Status add_blob(std::string name, std::span<std::byte> bytes);
  Status set_blob(std::string name, std::span<const std::byte> bytes);
  Status set_metric(std::string_view name, double value);
  std::optional<std::span<const std::byte>> blob(std::string_view name) const;

  Status prepare();
  Status prepare_in_background();
  Result<bool> is_due(Step step);
  Result<SaveOutcome> save(Step step, Stream stream, Due due, Deadline slot_deadline = {});
  Status guard(Stream stream);
  Status hold_captures(std::function<void(Step)> on_copied);
  Status settle(Step step, Status verdict);
  Status give_up(Step step, std::string why);
  Status wait(Step step, Level level, Deadline deadline);
  Result<Restored> restore(RestoreRequest request, const std::optional<Choice>& choice = {});
  Status start_fresh();
  Status restored_ok(Step step);
  Stats stats();
  Result<std::string> status(Deadline deadline);
  Status close(Deadline deadline);

 private:
  Status check_open() const;
  Deadline open_deadline() const;
  void collect();
  void report();
  void report_step_time(Step step, StepTimer::TimePoint now);

  Status finish_capture(Stream stream);
  Status update_layout();
  Result<SaveOutcome> try_save(Step step, Stream stream, Deadline slot_deadline);
  void note_skipped(Step step, SaveOutcome outcome);
  Error refuse(Step step, Error error);
  void leave();  // The engine keeps what it holds, as after a death.
  // Whether a Slot may be taken; waits for it until the deadline.
  Result<bool> make_ready(Deadline deadline);
  Status begin_timeline(Deadline deadline);

  Result<Restored> restore_agreed(control::AskRestore request, const RestoreTerms& terms);
  Result<Restored> restore_loaded(LoadRequest request, const RestoreTerms& terms);
  Result<Restored> ask_and_restore(control::AskRestore request,
                                   const SessionLink::Restoring& restoring, Deadline& deadline);
  Status copy_out(const format::ShardRecord& record, std::span<const std::byte> slot,
                  const RestoreTerms& terms);

  const Options options_;
  std::unique_ptr<SessionLink> link_;
  LinkCounters last_counters_;  // For use when the link is gone.
  DeviceTable devices_;
  TensorRegistry registry_;
  BlobStore blobs_;
  SaveMetrics metrics_;
  SaveAccount account_;
  CommitWatch commits_;
  StepTimer timer_;
  RestoreTeller teller_;
  StepSchedule schedule_;
  SlotReadiness slots_;
  RestoreStanding standing_;
  RunningCapture capture_;  // Last: its end waits for the copies that still read from the tensors.
};

}  // namespace ckpt::client
