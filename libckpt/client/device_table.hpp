// DeviceTable: the Devices of one session by index: the host is 0, each GPU comes when it is used.
//
// Threads:  the training thread. Lifetime: outlives the runs of its Devices and what it pins.
#pragma once

#include <ckpt/options.hpp>
#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <memory>
#include <span>
#include <vector>

#include "device/copy_threads.hpp"
#include "device/gpus.hpp"
#include "device/host_device.hpp"
#include "device/memory_pins.hpp"

namespace ckpt::client {

class DeviceTable {
 public:
  explicit DeviceTable(const Options& options);
  ~DeviceTable();
  DeviceTable(const DeviceTable&) = delete;
  DeviceTable& operator=(const DeviceTable&) = delete;

  // Returns the index of the tensor's Device. The first tensor on a GPU loads the driver.
  // Errors: invalid_argument (unknown, or not that GPU's memory), unsupported (no GPU here),
  //         unavailable (the GPU is lost).
  Result<std::size_t> find(const TensorRef& tensor);

  std::span<device::Device* const> devices() const { return devices_; }
  device::CopyThreads& threads() { return threads_; }
  bool has_gpus() const { return devices_.size() > 1; }

  // Keeps the Slots mapped and, once there is a GPU, pinned.
  const std::shared_ptr<device::MemoryPins>& pins() const { return pins_; }

 private:
  const device::GpuOptions gpu_options_;
  device::CopyThreads threads_;
  device::HostDevice host_;
  std::shared_ptr<device::MemoryPins> pins_;
  std::unique_ptr<device::Gpus> gpus_;
  std::vector<device::Device*> devices_;
};

}  // namespace ckpt::client
