// Device: the seam to where tensors live: their bytes are copied to a Slot, and back from one.
//
// A CopyRun is made once per plan and started once per capture, so that a capture allocates
// nothing. On a GPU, copies run on a separate stream in batches, and `fence` makes the caller's
// stream wait for an event. On the host, copies run on the copy threads, and `fence` takes part.
//
//   idle --start--> running --last byte read--> copied --listener notified--> idle
//
// Threads: the training thread; `copy_in` from several; a listener is called from any thread.
// Lifetime: sources stay valid until the run is fenced, the Slot until it is idle. A Device
//           outlives its runs.
#pragma once

#include <chrono>
#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.hpp"

namespace ckpt::device {

using Deadline = std::chrono::steady_clock::time_point;

// CopyPiece: bytes of one tensor within one Chunk.
struct CopyPiece {
  const std::byte* source = nullptr;  // In the Device's memory; null: zeros, for padding.
  std::uint64_t slot_offset = 0;
  std::uint64_t bytes = 0;
};

// Strip: pieces that lie next to each other within one Chunk. It is the unit of work and of
// checksum, so that ten thousand small tensors cost no more bookkeeping than a few large ones.
struct Strip {
  std::uint64_t slot_offset = 0;
  std::uint64_t bytes = 0;
  std::size_t first_piece = 0;
  std::size_t piece_count = 0;
};

struct CopyList {
  std::vector<CopyPiece> pieces;
  std::vector<Strip> strips;  // Cover `pieces` in order.
  // So many Slots are filled in turn, and a capture may leave alone what its Slot still holds.
  // 0: each copies all.
  std::size_t slots = 0;
};

// Stretch: bytes of a source, or of a Slot.
struct Stretch {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

class CopyListener {
 public:
  virtual ~CopyListener() = default;
  // Names what lies there in the Slot, for an error. Empty: it does not know.
  virtual std::string name_of(const Stretch& in_slot) {
    (void)in_slot;
    return {};
  }
  // The first `count` strips of the list are in the Slot. Slow devices call this now and then
  // during a run, from one thread at a time, and never after run_ended.
  virtual void strips_arrived(std::size_t count) { (void)count; }
  // Called once per started run: every byte is in the Slot, or the status says why not. May be
  // called from inside start and fence.
  virtual void run_ended(Status status) = 0;
};

struct CopyStart {
  std::span<std::byte> slot;
  Stream stream;  // Copies run after all work that is already queued on it.
  bool with_checksums = true;
  // Names the Slot's memory. 0: nobody knows what has happened to it.
  std::uint64_t generation = 0;
};

class CopyRun {
 public:
  virtual ~CopyRun() = default;  // Waits until it is idle.

  // Starts copying; the run must be idle. After an error it is idle again and no listener is
  // called. Errors: io (the device refused), unavailable (the device is lost).
  virtual Status start(const CopyStart& start) = 0;
  // Later work on `stream` (on the host: after this call) may change the sources. From here on the
  // run is not paced any more. Free when the run is idle. Errors: unavailable (the copies did not
  // end in time), io; the sources are then not safe to change.
  virtual Status fence(Stream stream) = 0;
  // Waits until the listener has returned. Errors: unavailable (the deadline passed).
  virtual Status wait_idle(Deadline deadline) = 0;

  // One per strip of the newest run that succeeded; empty when none were asked for, or when the
  // device leaves them to the engine.
  virtual std::span<const Crc32> checksums() const = 0;

  // Bytes that the Slot still held, and that the newest run that succeeded did not copy.
  virtual std::uint64_t bytes_unchanged() const { return 0; }
  // Somebody else may have written into the Slots: the next start into each copies all. The run is
  // idle.
  virtual void forget_slots() {}
};

// HashRun: takes checksums of memory where it lies, and copies nothing. `start` ignores the Slot.
class HashRun : public CopyRun {
 public:
  // The bytes that the next start hashes of each source, perhaps none. Borrowed until the run is
  // idle.
  virtual void choose(std::span<const Stretch> stretches) = 0;
  // checksums() has one for each source, or is empty: they could not be taken, which is no reason
  // for the run to fail. Those of different kinds of devices are not alike.
};

class Device {
 public:
  virtual ~Device() = default;

  virtual bool has_checksums() const = 0;  // A run can compute them while copying.

  virtual std::unique_ptr<CopyRun> make_run(CopyList list, CopyListener& listener) = 0;

  // Null: this device's memory is not hashed where it lies.
  virtual std::unique_ptr<HashRun> make_hash_run(std::vector<std::span<const std::byte>> sources,
                                                 CopyListener& listener) {
    (void)sources;
    (void)listener;
    return nullptr;
  }

  // Restore: queues target <- source, where `target` is the Device's memory. Both must stay valid
  // until `settle` has returned, even after a failure. Errors: io, unavailable (the device is
  // lost).
  virtual Status copy_in(std::byte* target, std::span<const std::byte> source) = 0;
  // Before the first copy_in: waits until all work queued on the device has ended. Errors:
  // unavailable (the deadline passed).
  virtual Status quiesce(Deadline deadline) {
    (void)deadline;
    return {};
  }
  // After the last copy_in: waits until the bytes have arrived. Errors: unavailable (the deadline
  // passed), io.
  virtual Status settle(Deadline deadline) = 0;
};

}  // namespace ckpt::device
