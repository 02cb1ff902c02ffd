// Gpus: the GPUs of this process that hold tensors. Each becomes a Device at its first use.
//
// Threads:  one at a time (the training thread). Lifetime: outlives the runs of its Devices.
#pragma once

#include <ckpt/options.hpp>
#include <ckpt/result.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/units.hpp"
#include "device/device.hpp"
#include "device/memory_pins.hpp"

namespace ckpt::device {

struct GpuOptions {
  std::uint64_t copy_rate = 0;  // Bytes per second of each GPU; 0: no limit.
  // The size of a batch and how many copies it holds: see cuda_batches.hpp.
  std::uint64_t batch_bytes = 32 * MiB;
  std::size_t batch_copies_max = 1024;
  GpuGap gap = GpuGap::memset;
  GpuGather gather = GpuGather::off;  // Whether a kernel copies small tensors.
  // Whether captures are compared with fingerprints that the GPU takes beforehand.
  bool is_checked = false;
  // Captures leave alone what their Slot still holds: see cuda_skip.hpp.
  bool skips_unchanged = false;
  std::string gap_cache;  // Keeps what GpuGap::automatic has measured; empty: nothing does.
  // The size of one registration; see cuda_batches.hpp.
  std::uint64_t pin_piece_bytes = 256 * MiB;
  // Asks the driver to prefer ways of copying that leave the GPU's cores alone.
  bool prefers_overlap = false;
};

class Gpus {
 public:
  virtual ~Gpus() = default;

  // Loads the driver, and from then on pins the memory in `pins`. Errors: unsupported (no driver,
  // no GPU, or a build without GPU support; the text says which).
  static Result<std::unique_ptr<Gpus>> open(const GpuOptions& options,
                                            std::shared_ptr<MemoryPins> pins);

  virtual int count() const = 0;
  // Returns the Device that holds `data`. Errors: invalid_argument (not memory of that GPU),
  // unavailable (the GPU is lost).
  virtual Result<Device*> device_of(const void* data, int index) = 0;
};

// The driver and the GPUs of this process, as "CUDA 13.0, 2 GPUs: NVIDIA H200, NVIDIA H200". Makes
// no context. Errors: as Gpus::open.
Result<std::string> describe_gpus();

}  // namespace ckpt::device
