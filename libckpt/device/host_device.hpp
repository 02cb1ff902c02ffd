// HostDevice: tensors in this process's own memory, copied and checksummed in one pass.
//
// Threads: as Device; the CopyThreads and the thread in fence() copy.
// Lifetime:  the CopyThreads outlive the device and its runs.
#pragma once

#include <memory>

#include "device/copy_threads.hpp"
#include "device/device.hpp"

namespace ckpt::device {

class HostDevice final : public Device {
 public:
  explicit HostDevice(CopyThreads& threads) : threads_(threads) {}

  bool has_checksums() const override { return true; }
  std::unique_ptr<CopyRun> make_run(CopyList list, CopyListener& listener) override;
  std::unique_ptr<HashRun> make_hash_run(std::vector<std::span<const std::byte>> sources,
                                         CopyListener& listener) override;
  Status copy_in(std::byte* target, std::span<const std::byte> source) override;
  Status settle(Deadline) override { return {}; }

 private:
  CopyThreads& threads_;
};

}  // namespace ckpt::device
