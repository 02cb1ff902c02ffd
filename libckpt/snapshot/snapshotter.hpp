// Snapshotter: the captures of one Layout, one at a time, each from a taken Slot to its checksums.
//
//   idle --begin: header, blobs and unguarded tensors are copied--> running --guarded ones--> idle
//
// Invariant: what begin() copied shows the tensors as they were at the call, what guard() copied as
//            they were before it returned. When either could not do so, the capture ends as failed.
// Threads:   the training thread; the listener hears from whichever thread copied the last byte.
// Memory:    all of it is taken when the Snapshotter is made; a capture allocates nothing.
// Lifetime:  devices and listener outlive it; the destructor waits for the copies under way.
#pragma once

#include <atomic>
#include <chrono>
#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "format/layout.hpp"
#include "snapshot/copy_plan.hpp"

namespace ckpt::snapshot {

struct CaptureRequest {
  Step step{};
  std::uint64_t timeline = 0;
  std::span<std::byte> slot;
  std::span<const std::span<const std::byte>> blobs;
  Stream stream;
  bool with_checksums = true;
};

// Captured: a capture that has ended. The spans are good until the next begin().
struct Captured {
  Step step{};
  Status status;  // Not ok: the Slot holds nothing that may be used.
  std::uint64_t bytes = 0;
  std::uint64_t blob_bytes = 0;
  std::span<const format::Extent> blobs;  // In the Slot, parallel to the request's.
  std::span<const Crc32> chunk_crcs;      // Empty: not taken on the way.
  std::chrono::nanoseconds took{0};
};

class CaptureListener {
 public:
  virtual ~CaptureListener() = default;
  // The first `bytes` of the Slot stand as they will. Now and then, by captures that take long and
  // whose checksums are left to the engine.
  virtual void capture_arrived(std::uint64_t bytes) { (void)bytes; }
  virtual void capture_ended(const Captured& captured) = 0;
};

class Snapshotter {
 public:
  // `sources` is parallel to the layout's tensors, `devices` is indexed by Source::device and
  // `header` is what format::render_header made.
  struct Plan {
    const format::Layout& layout;
    std::span<const Source> sources;
    std::vector<std::byte> header;
    std::span<device::Device* const> devices;
    std::uint64_t chunk_bytes = 0;
  };
  Snapshotter(Plan plan, CaptureListener& listener);
  ~Snapshotter();
  Snapshotter(const Snapshotter&) = delete;
  Snapshotter& operator=(const Snapshotter&) = delete;

  // Starts a capture; the one before must have ended. The listener hears of every capture that was
  // begun, also of one that fails here.
  // Errors: exhausted (the blobs are larger than their place), those of CopyRun::start and fence.
  Status begin(const CaptureRequest& request);
  // Before the next update of guarded sources. Free when nothing runs.
  // Errors: those of CopyRun::fence; the capture then ends as failed.
  Status guard(Stream stream);
  // Until the listener has been told. Errors: unavailable (the deadline passed).
  Status wait_idle(device::Deadline deadline);
  bool is_running() const { return is_running_.load(std::memory_order_acquire); }

 private:
  // One for each run, so that their statuses need no lock.
  struct RunEnd final : device::CopyListener {
    explicit RunEnd(Snapshotter& owner_in) : owner(owner_in) {}
    void strips_arrived(std::size_t count) override;
    void run_ended(Status ended) override;
    Snapshotter& owner;
    Status status;
    std::atomic<std::size_t> strips_there{0};
  };
  struct Run {
    bool is_guarded = false;
    std::unique_ptr<RunEnd> end;
    std::unique_ptr<device::CopyRun> run;
  };

  Status copy_all(const CaptureRequest& request);
  Status start_runs(const CaptureRequest& request, bool guarded);
  Status fence_runs(Stream stream, bool guarded);
  Status copy_blobs(const CaptureRequest& request);
  void tell_arrived();
  void part_ended();
  void end_capture();
  void combine_checksums();

  CaptureListener& listener_;
  std::vector<std::byte> header_;  // Read by the runs at each capture.
  std::uint64_t blob_capacity_ = 0;
  bool has_checksums_ = true;  // Every device takes them; else the engine takes all.
  CopyPlan plan_;              // Its lists were moved into the runs.
  std::vector<Run> runs_;      // Parallel to the plan's.

  // Of the capture that runs: written before its last part ends, then read by who ends it.
  Step step_{};
  std::span<const std::byte> slot_;
  bool with_checksums_ = false;
  std::vector<format::Extent> blobs_;
  std::uint64_t blob_bytes_ = 0;
  ChunkChecksums checksums_;
  Status begin_status_;
  std::chrono::steady_clock::time_point began_at_;

  // How far the Slot is filled without a gap; moved by one thread at a time.
  std::atomic_flag is_telling_ = ATOMIC_FLAG_INIT;
  std::size_t strips_told_ = 0;  // Of plan_.in_order.
  std::uint64_t bytes_told_ = 0;

  std::atomic<std::size_t> parts_left_{0};
  std::atomic<bool> is_torn_{false};
  std::atomic<bool> is_running_{false};
};

}  // namespace ckpt::snapshot
