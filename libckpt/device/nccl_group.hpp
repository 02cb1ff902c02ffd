// NcclGroup: a communicator of our own between the GPUs of several ranks, on a stream of our own.
//
//   open --join--> joined --broadcast--> joined --close--> closed
//                     +--error, expired deadline--> aborted
//
// No call waits inside NCCL: the communicator does not block, and each wait here asks for its state
// until a deadline. A failure aborts all, once; every later call then fails.
//
// Invariants: a communicator is destroyed or aborted exactly once. Memory that aborted work may
//             still use is never freed.
// Threads:   one. Lifetime: the library and the driver outlive it.
#pragma once

#include <ckpt/gpu_ranks.hpp>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "device/cuda_driver.hpp"
#include "device/cuda_fingerprint.hpp"
#include "device/nccl_library.hpp"

namespace ckpt::device {

class NcclGroup {
 public:
  struct Place {
    int gpu = 0;
    int rank = 0;
    int ranks = 1;
    NcclUniqueId id{};
    std::chrono::milliseconds abort_patience{5'000};  // Until aborted work has ended.
  };
  // Joins the other ranks. Errors: io (NCCL or the driver has failed), unsupported (no kernel for
  // fingerprints), unavailable (the deadline passed, or the GPU is lost).
  static Result<std::unique_ptr<NcclGroup>> open(const NcclLibrary& library,
                                                 const CudaDriver& driver, const Place& place,
                                                 Deadline deadline);
  ~NcclGroup();  // Aborts what is not closed.
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // As GpuRanks::broadcast.
  struct Work {
    int root = 0;
    std::span<const GpuPart> parts;
    CUstream after = nullptr;
  };
  Status broadcast(const Work& work, Deadline deadline);
  // Errors: io, unavailable; the communicator is gone all the same.
  Status close(Deadline deadline);

  // False: aborted work has not ended on this GPU.
  bool is_quiet() const { return is_quiet_; }

 private:
  struct Transfer;  // The fingerprints of one broadcast.

  NcclGroup(const NcclLibrary& library, const CudaDriver& driver, const Place& place)
      : library_(library), driver_(driver), fingerprint_(driver), place_(place) {}
  Status open_stream();
  Status join(Deadline deadline);
  Status check_work(const Work& work) const;
  Status check_memory(const GpuPart& part) const;
  Status carry_out(const Work& work, Transfer& transfer, Deadline deadline);
  Status queue(const Work& work, const Transfer& transfer);
  Status compare(const Work& work, const Transfer& transfer) const;
  Status wait_ready(std::string_view attempted, Deadline deadline) const;
  Status wait_event(std::string_view attempted, Deadline deadline) const;
  void abort();

  const NcclLibrary& library_;
  const CudaDriver& driver_;
  CudaFingerprint fingerprint_;
  const Place place_;
  CUdevice gpu_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  NcclComm comm_ = nullptr;  // Null: not joined, closed or aborted.
  bool is_quiet_ = true;
};

}  // namespace ckpt::device
