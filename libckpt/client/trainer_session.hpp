// TrainerSession: what a Checkpointer does, over any Link: layouts, captures, restores, accounts.
//
// Invariants: at most one capture runs; the registered tensors, the Layout and the Snapshotter only
//             change while none does. A step that was due and is not captured is told as skipped.
// Threads:    the training thread; captures end on whichever thread copied the last byte.
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
#include <vector>

#include "base/units.hpp"
#include "client/blob_store.hpp"
#include "client/device_table.hpp"
#include "client/held_capture.hpp"
#include "client/link.hpp"
#include "client/restore_teller.hpp"
#include "client/save_account.hpp"
#include "client/step_timer.hpp"
#include "client/storage_restore.hpp"
#include "client/tensor_registry.hpp"
#include "snapshot/restorer.hpp"
#include "snapshot/snapshotter.hpp"

namespace ckpt::client {

enum class Due : std::uint8_t { by_policy, always };

// Choice: a restore goes into what `targets` returns. With `RestoreRequest::from` it reads the
// shard of `rank`.
struct Choice {
  const ChooseTargets& targets;
  std::uint32_t rank = 0;
};

class TrainerSession final : private snapshot::CaptureListener {
 public:
  // `options` were resolved. `chunk_bytes` is smaller in tests.
  TrainerSession(Options options, std::unique_ptr<Link> link,
                 std::uint64_t chunk_bytes = default_chunk_bytes);
  ~TrainerSession() override;
  TrainerSession(const TrainerSession&) = delete;
  TrainerSession& operator=(const TrainerSession&) = delete;

  // As in ckpt/checkpointer.hpp and ckpt/framework.hpp.
  Status add(std::string name, TensorRef tensor);
  Status add_archive(std::string name, std::span<const NamedTensor> entries);
  Status remove(std::string_view name);
  Status add_blob(std::string name, std::span<std::byte> bytes);
  Status set_blob(std::string name, std::span<const std::byte> bytes);
  std::optional<std::span<const std::byte>> blob(std::string_view name) const;

  Status prepare();
  Status prepare_in_background();
  Result<bool> is_due(Step step);
  Result<SaveOutcome> save(Step step, Stream stream, Due due);
  Status guard(Stream stream);
  Status hold_captures(std::function<void(Step)> on_copied);
  Status settle(Step step, Status verdict);
  Status wait(Step step, Level level, Deadline deadline);
  Result<Restored> restore(RestoreRequest request, const std::optional<Choice>& choice = {});
  Status start_fresh();
  Status restored_ok(Step step);
  Stats stats();
  Result<std::string> status(Deadline deadline);
  Status close(Deadline deadline);

 private:
  void capture_arrived(std::uint64_t bytes) override;
  void capture_ended(const snapshot::Captured& captured) override;

  Status check_open() const;
  Status check_step(Step step) const;
  // Why `step` is not captured; none: it is to be.
  std::optional<SaveOutcome> not_now(Step step, Due due);
  void tell_passed(Step step);
  void tell_step_time(Step step, StepTimer::TimePoint now);
  bool must_be_skipped(Step step) const;  // Rather than tried again.
  Result<SaveOutcome> save_due(Step step, Stream stream);
  Status begin_capture(const TakenSlot& granted, Step step, Stream stream);
  // Copies what is left of the running capture, and takes account of how it ended.
  Status finish_capture(Stream stream);
  // Nobody has judged the capture that was held: it must not be seen.
  void drop_held();
  void tell(HeldCapture::Judged judged);
  void give_up(const snapshot::Captured& captured);
  void collect();
  void report();

  // A Layout and a Snapshotter for what is registered now; true when the Layout is another.
  Result<bool> update_layout();
  Status make_snapshotter();
  // The Layout of what is registered now, if it is news; waits for its Slots until the deadline.
  Status tell_layout(Deadline deadline);
  Status send_layout(Deadline deadline);
  Status prepare_for_restored();
  // Whether a Slot may be taken; waits for it until the deadline.
  Result<bool> make_ready(Deadline deadline);
  Status ask_slots(bool is_changed, Deadline deadline);
  Status copy_out(const format::ShardRecord& record, std::span<const std::byte> slot,
                  const ChooseTargets* choose = nullptr);
  Status copy_planned(const format::ShardRecord& record, std::span<const std::byte> slot,
                      const snapshot::RestorePlan& plan);
  Status copy_chosen(const format::ShardRecord& record, std::span<const std::byte> slot,
                     const ChooseTargets& choose);
  Result<Restored> restore_agreed(std::optional<Step> step, const ChooseTargets* choose);
  Result<Restored> restore_loaded(LoadRequest request, const ChooseTargets* choose);
  Result<Restored> ask_and_restore(std::optional<Step> step, const Link::CopyOut& copy,
                                   Deadline& deadline);
  Error tell_if_partly_restored(Error error) const;
  void continue_after(Step step);
  Deadline open_deadline() const;
  Error failed_to_restore(Error error, bool is_step_named);
  // Whether what was due has been captured, all in all.
  Status check_captured() const;
  void tell_if_behind() const;  // At the end, when the newest steps are not saved.

  const Options options_;
  const std::uint64_t chunk_bytes_;
  std::unique_ptr<Link> link_;
  LinkCounters last_counters_;  // Once the Link is gone.
  DeviceTable devices_;
  TensorRegistry registry_;
  BlobStore blobs_;
  SaveAccount account_;
  StepTimer timer_;
  RestoreTeller teller_;

  format::Layout layout_;
  std::optional<std::uint64_t> registry_version_;  // That layout_ was made from.
  bool has_blob_member_ = false;
  bool is_layout_told_ = false;
  std::uint64_t room_asked_ = 0;  // Bytes of each Slot, as the engine was told last.
  bool has_begun_ = false;        // A timeline is open: restored, or started fresh.
  bool has_waited_ = false;       // The one save that may wait for Slots was made.
  std::optional<Step> last_seen_;
  std::optional<Step> captured_for_;  // By time: the announcement that was followed.
  std::chrono::steady_clock::time_point tell_passed_from_{};
  std::optional<Step> last_due_;  // Captured or skipped: it is not tried again.
  std::optional<Step> refused_;   // The newest whose save was an error.
  std::optional<Step> skipped_;   // The newest for which there was no Slot.
  std::optional<Step> newest_begun_;
  bool is_partly_restored_ = false;
  std::optional<Error> slots_failure_;  // Why there are no Slots for the layout that was told.
  Deadline ask_slots_again_{};
  bool has_trained_ = false;      // It began once: after a restore that finds nothing it goes on.
  std::optional<Step> restored_;  // The timeline that is open began with it.
  std::optional<Error> restore_failure_;  // What is stored may be good: saves must not replace it.

  // Of the running capture; read by who ends it.
  HeldCapture held_;
  std::function<void(Step)> on_copied_;  // None: captures are told at once.
  TakenSlot granted_;
  std::vector<std::string> blob_names_;

  // Last: its destructor waits for the copies that still read from the tensors.
  std::unique_ptr<snapshot::Snapshotter> snapshotter_;
};

}  // namespace ckpt::client
