#include "client/device_table.hpp"

#include <algorithm>

#include "os/runtime_directory.hpp"

namespace ckpt::client {

namespace {

device::GpuOptions gpu_options(const Options& options) {
  device::GpuOptions gpus;
  gpus.copy_rate = options.gpu_copy_rate;
  gpus.gap = options.gpu_gap;
  gpus.gather = options.gpu_gather;
  gpus.is_checked = options.gpu_check;
  gpus.skips_unchanged = options.skip_unchanged;
  // Without a directory, as in an embedded engine, each process measures.
  if (const auto directory = os::RuntimeDirectory::find(options.runtime_dir))
    gpus.gap_cache = directory->path() + "/gpu-gaps";
  return gpus;
}

}  // namespace

DeviceTable::DeviceTable(const Options& options)
    : gpu_options_(gpu_options(options)),
      threads_(options.copy_threads),
      host_(threads_),
      pins_(std::make_shared<device::MemoryPins>()),
      devices_{&host_} {}

DeviceTable::~DeviceTable() {
  pins_->stop();
}

Result<std::size_t> DeviceTable::find(const TensorRef& tensor) {
  if (tensor.location == Location::host) return std::size_t{0};
  if (tensor.location != Location::cuda)
    return fail(Errc::invalid_argument, "its location is unknown");
  if (!gpus_) {
    CKPT_TRY(gpus_, device::Gpus::open(gpu_options_, pins_));
  }
  CKPT_TRY(device::Device * device, gpus_->device_of(tensor.data, tensor.device_index));
  const auto known = std::find(devices_.begin(), devices_.end(), device);
  if (known == devices_.end()) devices_.push_back(device);
  return static_cast<std::size_t>(std::find(devices_.begin(), devices_.end(), device) -
                                  devices_.begin());
}

}  // namespace ckpt::client
