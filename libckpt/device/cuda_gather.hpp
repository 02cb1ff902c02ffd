// CudaGather: the kernel that copies many small tensors straight into a pinned Slot.
//
//   off, or unusable --load: the driver takes the PTX and a first launch--> usable
//   usable --a launch is refused--> unusable, for good
//
// Threads: one at a time (the queue's lock). Lifetime: the driver outlives it, and so does the
//          context, which frees the module.
#pragma once

#include <ckpt/options.hpp>
#include <memory>
#include <span>

#include "device/cuda_driver.hpp"
#include "device/cuda_gather_plan.hpp"
#include "device/cuda_mirror.hpp"

namespace ckpt::device {

class GatherTable;

class CudaGather {
 public:
  CudaGather(const CudaDriver& driver, GpuGather choice) : driver_(driver), choice_(choice) {}

  // Loads the kernel and launches it once with nothing to do: a driver may load code at its first
  // launch, and wait for the GPU then. With the context current. Errors: unavailable (the context
  // is lost); anything else leaves it unusable, and is logged.
  Status load(CUstream stream, bool takes_host_pointers);
  bool is_usable() const { return function_ != nullptr; }
  // Plans may give it this much; nothing while it is unusable.
  GatherLimits limits() const;

  // Queues the copies of `entries`, which begin at `first` in the table, into a pinned Slot. False:
  // it has become unusable, and nothing was queued. Errors: unavailable (the context is lost).
  struct Launch {
    std::size_t first = 0;
    std::span<const CudaCopy> copies;
    std::byte* slot = nullptr;
  };
  Result<bool> queue(GatherTable& table, const Launch& launch, CUstream stream);

 private:
  Status load_and_try(CUstream stream);
  CUresult launch(CUdeviceptr entries, unsigned count, unsigned parts, std::byte* slot,
                  CUstream stream);
  Status give_up(const Error& why);

  const CudaDriver& driver_;
  const GpuGather choice_;
  CUfunction function_ = nullptr;
};

// GatherTable: the addresses that the kernel reads, of one plan: in pinned memory, from where they
// are copied to the GPU once, in the order of our stream.
class GatherTable {
 public:
  // With the context current. Errors: io, unavailable.
  static Result<std::unique_ptr<GatherTable>> make(CudaMirrors& mirrors,
                                                   std::span<const GatherEntry> entries);
  ~GatherTable();  // No copy that is queued uses it.
  GatherTable(const GatherTable&) = delete;
  GatherTable& operator=(const GatherTable&) = delete;

  // Before the first launch; free after that. Errors: as CudaDriver::check.
  Status send(CUstream stream);
  CUdeviceptr entry(std::size_t index) const {
    return memory_->on_gpu() + index * sizeof(GatherEntry);
  }
  // The context is gone, and its memory with it.
  void forget();

 private:
  explicit GatherTable(CudaMirrors& mirrors) : mirrors_(mirrors) {}

  CudaMirrors& mirrors_;
  std::unique_ptr<CudaMirror> memory_;
  bool is_sent_ = false;
};

}  // namespace ckpt::device
