// RunningCapture: the one capture that may run, from its Slot to the message `filled`.
//
//   idle --begin--> copying --last byte--> judged, if captures are held --> filled, or abandoned
//
// Invariants: at most one capture runs. A capture that failed is reported as skipped at once, since
//             the training thread may be waiting for that very step.
// Threads:    the training thread; captures end on the thread that copies the last byte.
#pragma once

#include <ckpt/options.hpp>
#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/blob_store.hpp"
#include "client/device_table.hpp"
#include "client/held_capture.hpp"
#include "client/held_copies.hpp"
#include "client/save_account.hpp"
#include "client/session_link.hpp"
#include "client/tensor_registry.hpp"
#include "format/layout.hpp"
#include "snapshot/snapshotter.hpp"

namespace ckpt::client {

class RunningCapture final : private snapshot::CaptureListener {
 public:
  // All are borrowed.
  struct Parts {
    const Options& options;
    SessionLink& link;
    DeviceTable& devices;
    SaveAccount& account;
    std::uint64_t chunk_bytes = 0;
  };
  explicit RunningCapture(const Parts& parts) : parts_(parts), compares_(parts.options) {}
  ~RunningCapture() override { end(); }
  RunningCapture(const RunningCapture&) = delete;
  RunningCapture& operator=(const RunningCapture&) = delete;

  // Plans the copies of the registered tensors, unless there is a plan.
  Status plan(const format::Layout& layout, const TensorRegistry& registry);
  void forget_plan() { snapshotter_.reset(); }
  // A restore fills Slots. Only while no capture runs.
  void forget_slots() {
    if (snapshotter_) snapshotter_->forget_slots();
  }
  // Training goes on after this step.
  void restart(std::optional<Step> restored) { compares_.restart(restored); }

  // Errors: those of Snapshotter::begin.
  Status begin(const TakenSlot& slot, Step step, Stream stream, BlobStore& blobs);
  bool is_running() const { return snapshotter_ && snapshotter_->is_running(); }
  Status guard(Stream stream) { return snapshotter_->guard(stream); }
  // Copies the rest, and drops a held capture without a verdict: it must not become visible.
  Status finish(Stream stream);
  // The same for a save, which must not wait for a GPU. False: its copies have not ended by
  // `deadline`, or a moment after now; nothing was dropped.
  Result<bool> finish_soon(Stream stream, Deadline deadline);
  // Waits for the copies that still read from the tensors. The link must still be there.
  void end();

  // See FrameworkCheckpointer.
  void hold(std::function<void(Step)> on_copied) { on_copied_ = std::move(on_copied); }
  void settle(Step step, Status verdict);

 private:
  void capture_arrived(std::uint64_t bytes) override;
  std::string tensors_in(const format::Extent& in_slot) override {
    return format::tensors_in(layout_, in_slot);
  }
  void capture_ended(const snapshot::Captured& captured) override;
  Deadline end_deadline() const;  // For copies that nothing holds up.
  CopiedCapture copied(const snapshot::Captured& captured) const;
  void publish(HeldCapture::Judged judged);
  void give_up(const snapshot::Captured& captured);
  void drop_unjudged();

  const Parts parts_;
  CompareSchedule compares_;

  // Written before the copies begin, then read on the thread that ends the capture.
  format::Layout layout_;
  HeldCapture held_;
  std::function<void(Step)> on_copied_;  // None: no capture is held.
  TakenSlot slot_;
  std::vector<std::string> blob_names_;
  HeldCopies copies_;

  // Last: its destructor waits for the copies that still read from the tensors.
  std::unique_ptr<snapshot::Snapshotter> snapshotter_;
};

}  // namespace ckpt::client
