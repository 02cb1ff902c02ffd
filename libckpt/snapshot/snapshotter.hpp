// Snapshotter: the captures of one Layout, one at a time, each from a granted Slot to its
// checksums.
//
//   idle --begin: header, blobs and unguarded tensors are copied--> running --guarded ones--> idle
//
// Invariant: begin() copies tensors as they are at the call, guard() as they are before it returns.
// If either could not, the capture ends as failed.
// Threads: the training thread; the thread that copied the last byte calls the listener.
// Memory: allocated when the Snapshotter is made; a capture allocates nothing.
// Lifetime: devices and listener outlive it; the destructor waits for running copies.
#pragma once

#include <atomic>
#include <chrono>
#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "format/layout.hpp"
#include "snapshot/copy_plan.hpp"

namespace ckpt::snapshot {

// HashedSource: memory of which captures take checksums, and no copy.
struct HashedSource {
  std::span<const std::byte> bytes;
  bool is_guarded = false;  // As a Source's: when it may change.
  std::size_t device = 0;   // As a Source's.
};

struct CaptureRequest {
  Step step{};
  std::uint64_t timeline = 0;
  std::span<std::byte> slot;
  std::uint64_t generation = 0;  // As CopyStart::generation.
  std::span<const std::span<const std::byte>> blobs;
  Stream stream;
  bool with_checksums = true;
  // The bytes to hash of each HashedSource, perhaps none. Empty: this capture hashes none.
  std::span<const device::Stretch> hashed;
};

// Captured: the result of a capture. The spans are valid until the next begin().
struct Captured {
  Step step{};
  Status status;  // Not ok: nothing in the Slot may be used.
  std::uint64_t bytes = 0;
  std::uint64_t bytes_unchanged = 0;  // Those of them that the Slot still held.
  std::uint64_t blob_bytes = 0;
  std::span<const format::Extent> blobs;  // In the Slot, parallel to the request's.
  std::span<const Crc32> chunk_crcs;      // Empty: not computed while copying.
  // Parallel to the request's `hashed`, by each device in its own way. None: not taken.
  std::span<const std::optional<Crc32>> hashes;
  std::chrono::nanoseconds took{0};
};

class CaptureListener {
 public:
  virtual ~CaptureListener() = default;
  // The first `bytes` of the Slot are final. Called now and then by slow captures whose checksums
  // the engine computes.
  virtual void capture_arrived(std::uint64_t bytes) { (void)bytes; }
  // Names the tensors that have bytes there in the Slot, for an error. Empty: it does not know.
  virtual std::string tensors_in(const format::Extent& in_slot) {
    (void)in_slot;
    return {};
  }
  virtual void capture_ended(const Captured& captured) = 0;
};

class Snapshotter {
 public:
  // `sources` is parallel to the layout's tensors, `devices` is indexed by Source::device, and
  // `header` comes from format::render_header.
  struct Plan {
    const format::Layout& layout;
    std::span<const Source> sources;
    std::vector<std::byte> header;
    std::span<device::Device* const> devices;
    std::uint64_t chunk_bytes = 0;
    std::span<const HashedSource> hashed = {};
    // They are filled in turn, and what has not changed since is left alone: of guarded tensors
    // only frozen ones, as the others change before the next capture in any case. 0: each capture
    // copies all.
    std::size_t slots = 0;
  };
  Snapshotter(Plan plan, CaptureListener& listener);
  ~Snapshotter();
  Snapshotter(const Snapshotter&) = delete;
  Snapshotter& operator=(const Snapshotter&) = delete;

  // Starts a capture; the previous one must have ended. The listener is notified of the end of
  // every capture, even if it fails here. Errors: exhausted (the blobs are larger than their
  // place), those of CopyRun::start and fence.
  Status begin(const CaptureRequest& request);
  // Call it before the next update of guarded sources. Free when nothing runs. Errors: those of
  // CopyRun::fence; the capture then ends as failed.
  Status guard(Stream stream);
  // Waits until the listener has returned. Errors: unavailable (the deadline passed).
  Status wait_idle(device::Deadline deadline);
  bool is_running() const { return is_running_.load(std::memory_order_acquire); }
  // Somebody else may have written into the Slots. Only while nothing runs.
  void forget_slots();

 private:
  // One for each run, so that their statuses need no lock.
  struct RunEnd final : device::CopyListener {
    explicit RunEnd(Snapshotter& owner_in) : owner(owner_in) {}
    std::string name_of(const device::Stretch& in_slot) override {
      return owner.listener_.tensors_in({in_slot.offset, in_slot.bytes});
    }
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
    bool is_hashing = false;  // It copies nothing, and only some captures start it.
  };
  // Hashing: the sources of one run, which share a device and when they may change.
  struct Hashing {
    device::HashRun* run = nullptr;
    std::vector<std::size_t> sources;  // Indexes into the request's `hashed`.
    std::vector<device::Stretch> stretches;
  };

  void add_hashing(const Plan& plan, std::size_t device, bool guarded);
  void choose_hashed(std::span<const device::Stretch> stretches);
  Status copy_all(const CaptureRequest& request);
  Status start_runs(const CaptureRequest& request, bool guarded);
  Status fence_runs(Stream stream, bool guarded);
  Status copy_blobs(const CaptureRequest& request);
  void report_arrived();
  void part_ended();
  void end_capture();
  void combine_checksums();
  void collect_hashes();

  CaptureListener& listener_;
  std::vector<std::byte> header_;  // Each capture's runs read it.
  std::uint64_t blob_capacity_ = 0;
  bool has_checksums_ = true;  // Every device computes them; else the engine does.
  CopyPlan plan_;              // Without its lists, which the runs own.
  std::vector<Run> runs_;      // Parallel to the plan's; behind them those that hash.
  std::vector<Hashing> hashings_;

  // State of the active capture: written before its last part ends, then read by the thread that
  // ended it.
  Step step_{};
  std::span<const std::byte> slot_;
  bool with_checksums_ = false;
  bool with_hashes_ = false;
  std::vector<std::optional<Crc32>> hashes_;
  std::vector<format::Extent> blobs_;
  std::uint64_t blob_bytes_ = 0;
  ChunkChecksums checksums_;
  Status begin_status_;
  std::chrono::steady_clock::time_point began_at_;

  // How far the Slot is filled without a gap. One thread at a time advances it.
  std::atomic_flag is_reporting_ = ATOMIC_FLAG_INIT;
  std::size_t strips_reported_ = 0;  // The count in plan_.in_order.
  std::uint64_t bytes_reported_ = 0;

  std::atomic<std::size_t> parts_left_{0};
  std::atomic<bool> is_torn_{false};
  std::atomic<bool> is_running_{false};
};

}  // namespace ckpt::snapshot
