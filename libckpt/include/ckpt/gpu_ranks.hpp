// GpuRanks: the GPUs of a job's ranks, joined by NCCL for a restore: one rank's bytes reach all.
//
//   open --join--> joined --broadcast (often)--> joined --close--> closed
//                     +-----any error but corruption-----> ended: every later call fails
//
// NCCL is loaded at run time. The communicator and its stream are our own: the trainer's are never
// used, so nothing here can break them.
//
// Threads:   one at a time. A thread of our own (`ckpt-nccl`) makes the calls, so that each wait
//            ends at its deadline, even if NCCL does not return.
// Lifetime:  the memory of a broadcast stays allocated until it returns; and if `is_quiet` is then
//            false, for as long as the process lives.
#pragma once

#include <array>
#include <chrono>
#include <ckpt/export.hpp>
#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ckpt {

struct GpuPart {
  void* data = nullptr;  // On the GPU of this rank.
  std::uint64_t bytes = 0;
};

// The same on all ranks, but for the addresses and the stream.
struct GpuBroadcast {
  std::uint32_t root = 0;  // The rank whose bytes the others get.
  std::vector<GpuPart> parts;
  Stream after;  // Work that is queued on it comes first.
  std::chrono::milliseconds timeout{30'000};
};

class CKPT_EXPORT GpuRanks {
 public:
  // For one broadcast: its fingerprints take memory, and its deadline must suffice.
  static constexpr std::uint64_t bytes_max = std::uint64_t{1} << 30;
  static constexpr std::size_t parts_max = 1024;

  // Made by one rank and sent to all; opaque.
  using Id = std::array<std::byte, 128>;

  struct Options {
    int gpu = 0;          // It holds this rank's tensors.
    std::string library;  // Where NCCL may lie, beside the usual places; may be empty.
    // After its timeout a call waits so much longer for NCCL to stop what it has begun.
    std::chrono::milliseconds abort_patience{10'000};
  };
  // Loads NCCL and the driver. Errors: unsupported (one of them is missing or too old, or
  // NCCL_COMM_BLOCKING is set, or a build without GPU support), exhausted (no thread).
  static Result<GpuRanks> open(const Options& options);
  GpuRanks(GpuRanks&&) noexcept;
  GpuRanks& operator=(GpuRanks&&) noexcept;
  ~GpuRanks();  // Closes.

  // Errors: io (NCCL has failed), unavailable (the deadline passed).
  Result<Id> make_id(std::chrono::milliseconds timeout);

  struct Place {
    std::uint32_t rank = 0;
    std::uint32_t ranks = 1;
    Id id{};
    std::chrono::milliseconds timeout{20'000};
  };
  // All ranks call it with the same id, once. Errors: io, unsupported (this GPU runs no kernel of
  // ours), unavailable (the deadline passed, or an earlier call has failed).
  Status join(const Place& place);
  // All ranks call it alike. The receivers compare what has arrived with fingerprints that the
  // root's GPU took of its own memory. Errors: corruption (the text names the part; the ranks stay
  // joined), invalid_argument (too much, or no memory of this GPU), io, unavailable (the deadline
  // passed, or an earlier call has failed).
  Status broadcast(const GpuBroadcast& broadcast);
  // When no rank broadcasts any more. Errors: io, unavailable; closed all the same.
  Status close(std::chrono::milliseconds timeout);

  // False: an aborted broadcast has not ended on this GPU, and may still write to its parts.
  bool is_quiet() const;
  std::string library_name() const;  // As it was loaded, with its version.

 private:
  class Impl;
  explicit GpuRanks(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckpt
