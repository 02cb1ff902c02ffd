// The implementation of gpus.hpp for builds with CUDA's headers.
#include <fmt/format.h>

#include <map>
#include <optional>
#include <utility>

#include "base/log.hpp"
#include "device/cuda_device.hpp"
#include "device/cuda_pinner.hpp"

namespace ckpt::device {

namespace {

class CudaGpus final : public Gpus {
 public:
  CudaGpus(std::unique_ptr<CudaDriver> driver, const GpuOptions& options,
           std::shared_ptr<MemoryPins> pins)
      : options_(options), driver_(std::move(driver)), pins_(std::move(pins)) {}
  ~CudaGpus() override { pins_->stop(); }

  int count() const override { return driver_->device_count; }
  Result<Device*> device_of(const void* data, int index) override;

 private:
  Result<CudaDevice*> open_device(int index);
  Status check_memory(const void* data, int index) const;

  const GpuOptions options_;
  std::unique_ptr<CudaDriver> driver_;
  std::shared_ptr<MemoryPins> pins_;
  std::map<int, std::unique_ptr<CudaDevice>> devices_;
  std::optional<CudaPinner> pinner_;  // In the context of the first device.
};

Result<CudaDevice*> CudaGpus::open_device(int index) {
  if (index < 0 || index >= count())
    return fail(Errc::invalid_argument,
                fmt::format("there is no GPU {}: this process sees {}", index, count()));
  if (const auto found = devices_.find(index); found != devices_.end()) return found->second.get();
  CKPT_TRY(auto device, CudaDevice::open(*driver_, index, *pins_, options_));
  CudaDevice* const opened = device.get();
  devices_.emplace(index, std::move(device));
  if (!pinner_) {
    pinner_.emplace(*driver_, opened->context(), options_.pin_piece_bytes);
    pins_->start(*pinner_);
    log_info("GPU captures use the driver of {}{}", driver_->version_text(),
             driver_->has_batch_copy() ? "" : ", which copies small tensors one by one");
  }
  return opened;
}

Status CudaGpus::check_memory(const void* data, int index) const {
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(data));
  int ordinal = -1;
  const CUresult result =
      driver_->pointer_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  unsigned int type = 0;
  if (result == CUDA_SUCCESS &&
      driver_->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
          CUDA_SUCCESS &&
      type == CU_MEMORYTYPE_DEVICE && ordinal == index)
    return {};
  if (is_context_lost(result)) return driver_->check(result, "look at a tensor's address");
  if (result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE)
    return fail(Errc::invalid_argument,
                fmt::format("its data lies on GPU {}, but GPU {} was given", ordinal, index));
  return fail(Errc::invalid_argument,
              fmt::format("its data at {} is no memory of GPU {}", data, index));
}

Result<Device*> CudaGpus::device_of(const void* data, int index) {
  CKPT_TRY(CudaDevice * device, open_device(index));
  if (data != nullptr) {
    const CudaScope scope(*driver_, device->context());
    CKPT_CHECK(scope.status());
    CKPT_CHECK(check_memory(data, index));
  }
  return static_cast<Device*>(device);
}

}  // namespace

Result<std::unique_ptr<Gpus>> Gpus::open(const GpuOptions& options,
                                         std::shared_ptr<MemoryPins> pins) {
  CKPT_TRY(auto driver, CudaDriver::open());
  return std::unique_ptr<Gpus>(
      std::make_unique<CudaGpus>(std::move(driver), options, std::move(pins)));
}

Result<std::string> describe_gpus() {
  CKPT_TRY(const auto driver, CudaDriver::open());
  std::string names;
  for (int index = 0; index < driver->device_count; ++index) {
    CUdevice device = 0;
    CKPT_CHECK(driver->check(driver->get_device(&device, index), "find a GPU"));
    char name[128] = "";
    CKPT_CHECK(driver->check(driver->device_name(name, sizeof name, device), "name a GPU"));
    if (!names.empty()) names += ", ";
    names += name;
  }
  return fmt::format("{}, {} GPU{}: {}", driver->version_text(), driver->device_count,
                     driver->device_count == 1 ? "" : "s", names);
}

}  // namespace ckpt::device
