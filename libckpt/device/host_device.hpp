// HostDevice: tensors in this process's own memory, copied and checksummed in one pass.
//
// Threads:   as Device; the copying happens on the CopyThreads and on whoever fences.
// Lifetime:  the CopyThreads outlive the device and its runs.
#pragma once

#include <memory>

#include "device/copy_threads.hpp"
#include "device/device.hpp"

namespace ckpt::device {

// A copy between two places of one memory takes milliseconds. If it took this long, the machine is
// swapping or stopped, and the trainer is told instead of being held.
inline constexpr std::chrono::seconds host_fence_deadline{60};

class HostDevice final : public Device {
 public:
  explicit HostDevice(CopyThreads& threads) : threads_(threads) {}

  bool has_checksums() const override { return true; }
  std::unique_ptr<CopyRun> make_run(CopyList list, CopyListener& listener) override;
  Status copy_in(std::byte* target, std::span<const std::byte> source) override;
  Status settle(Deadline) override { return {}; }

 private:
  CopyThreads& threads_;
};

}  // namespace ckpt::device
