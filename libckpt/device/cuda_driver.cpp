#include "device/cuda_driver.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "os/dynamic_library.hpp"

namespace ckpt::device {

namespace {

constexpr int driver_version_min = 11030;  // The first version with cuGetProcAddress.
constexpr int version_of_entry_12000 = 12000;
constexpr int version_of_context_id = 12000;
constexpr int version_of_batch_copy = 12080;
constexpr int version_of_batch_copy_without_index = 13000;

// An error that drivers may return and older headers do not name.
constexpr int error_contained = 226;
constexpr int error_tensor_memory_leak = 721;
constexpr int error_mps_client_terminated = 810;
constexpr int error_external_device = 911;

std::string version_text(int version) {
  return fmt::format("CUDA {}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

// CudaSymbols: looks up functions by asking the driver itself, since a name alone may mean any of
// several versions of a function.
class CudaSymbols {
 public:
  static Result<CudaSymbols> open() {
    const char* named = std::getenv("CKPT_CUDA_DRIVER");
    // The second is where containers mount the driver that the host has.
    std::vector<std::string> names = {"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"};
    if (named != nullptr && *named != '\0') names = {named};
    auto library = os::DynamicLibrary::open(names);
    if (!library)
      return fail(Errc::unsupported,
                  fmt::format("no NVIDIA driver {}: {}",
                              names.size() == 1 ? "where CKPT_CUDA_DRIVER says" : "on this machine",
                              library.error().text()));
    CudaSymbols symbols(std::move(*library));
    CKPT_CHECK(symbols.find_entry());
    return symbols;
  }

  int version() const { return version_; }

  // Finds the function in the form it has had since CUDA `version`.
  template <class Function>
  Status find(Function& function, const char* name, int version) const {
    void* address = nullptr;
    CUresult result = CUDA_SUCCESS;
    if (entry_12000_ != nullptr) {
      CUdriverProcAddressQueryResult found{};
      result = entry_12000_(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, &found);
    } else {
      result = entry_11030_(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT);
    }
    if (result != CUDA_SUCCESS || address == nullptr)
      return fail(Errc::unsupported, fmt::format("the driver {} ({}) has no {}", library_.name(),
                                                 version_text(version_), name));
    function = reinterpret_cast<Function>(address);
    return {};
  }

 private:
  explicit CudaSymbols(os::DynamicLibrary library) : library_(std::move(library)) {}

  Status find_entry() {
    using GetVersion = CUresult(int*);
    CKPT_TRY(GetVersion * read_version, library_.symbol<GetVersion>("cuDriverGetVersion"));
    if (read_version(&version_) != CUDA_SUCCESS || version_ < driver_version_min)
      return fail(Errc::unsupported, fmt::format("the driver {} is of {}; {} is the oldest that "
                                                 "can be used",
                                                 library_.name(), version_text(version_),
                                                 version_text(driver_version_min)));
    using Get12000 = std::remove_pointer_t<PFN_cuGetProcAddress_v12000>;
    using Get11030 = std::remove_pointer_t<PFN_cuGetProcAddress_v11030>;
    if (version_ >= version_of_entry_12000) {
      CKPT_TRY(entry_12000_, library_.symbol<Get12000>("cuGetProcAddress_v2"));
      return {};
    }
    CKPT_TRY(entry_11030_, library_.symbol<Get11030>("cuGetProcAddress"));
    return {};
  }

  os::DynamicLibrary library_;
  int version_ = 0;
  PFN_cuGetProcAddress_v12000 entry_12000_ = nullptr;
  PFN_cuGetProcAddress_v11030 entry_11030_ = nullptr;
};

std::string CudaDriver::version_text() const {
  return device::version_text(version);
}

Result<std::unique_ptr<CudaDriver>> CudaDriver::open() {
  CKPT_TRY(const CudaSymbols symbols, CudaSymbols::open());
  auto driver = std::make_unique<CudaDriver>();
  driver->version = symbols.version();
  CKPT_CHECK(driver->find_functions(symbols));
  driver->find_newer_functions(symbols);
  const auto start = [&]() -> Status {
    CKPT_CHECK(driver->check(driver->init(0), "initialise CUDA"));
    return driver->check(driver->get_device_count(&driver->device_count), "count the GPUs");
  };
  if (Status started = start(); !started) {
    return fail(Errc::unsupported, "no GPU can be used: " + started.error().text());
  }
  if (driver->device_count == 0)
    return fail(Errc::unsupported, "no GPU can be used: the driver shows none");
  return driver;
}

Status CudaDriver::find_functions(const CudaSymbols& symbols) {
  CKPT_CHECK(symbols.find(error_name, "cuGetErrorName", 6000));
  CKPT_CHECK(symbols.find(error_string, "cuGetErrorString", 6000));
  CKPT_CHECK(symbols.find(init, "cuInit", 2000));
  CKPT_CHECK(symbols.find(get_device_count, "cuDeviceGetCount", 2000));
  CKPT_CHECK(symbols.find(get_device, "cuDeviceGet", 2000));
  CKPT_CHECK(symbols.find(device_name, "cuDeviceGetName", 2000));
  CKPT_CHECK(symbols.find(device_attribute, "cuDeviceGetAttribute", 2000));
  CKPT_CHECK(symbols.find(retain_context, "cuDevicePrimaryCtxRetain", 7000));
  CKPT_CHECK(symbols.find(release_context, "cuDevicePrimaryCtxRelease", 11000));
  CKPT_CHECK(symbols.find(push_context, "cuCtxPushCurrent", 4000));
  CKPT_CHECK(symbols.find(pop_context, "cuCtxPopCurrent", 4000));
  CKPT_CHECK(symbols.find(synchronize_context, "cuCtxSynchronize", 2000));
  CKPT_CHECK(symbols.find(create_stream, "cuStreamCreate", 2000));
  CKPT_CHECK(symbols.find(priority_range, "cuCtxGetStreamPriorityRange", 5050));
  CKPT_CHECK(symbols.find(create_priority_stream, "cuStreamCreateWithPriority", 5050));
  CKPT_CHECK(symbols.find(destroy_stream, "cuStreamDestroy", 4000));
  CKPT_CHECK(symbols.find(wait_event, "cuStreamWaitEvent", 3020));
  CKPT_CHECK(symbols.find(query_stream, "cuStreamQuery", 2000));
  CKPT_CHECK(symbols.find(context_of_stream, "cuStreamGetCtx", 9020));
  CKPT_CHECK(symbols.find(is_capturing, "cuStreamIsCapturing", 10000));
  CKPT_CHECK(symbols.find(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", 10010));
  CKPT_CHECK(symbols.find(create_event, "cuEventCreate", 2000));
  CKPT_CHECK(symbols.find(destroy_event, "cuEventDestroy", 4000));
  CKPT_CHECK(symbols.find(record_event, "cuEventRecord", 2000));
  CKPT_CHECK(symbols.find(query_event, "cuEventQuery", 2000));
  CKPT_CHECK(symbols.find(copy_to_host, "cuMemcpyDtoHAsync", 3020));
  CKPT_CHECK(symbols.find(copy_to_device, "cuMemcpyHtoDAsync", 3020));
  CKPT_CHECK(symbols.find(set_words, "cuMemsetD32Async", 3020));
  CKPT_CHECK(symbols.find(write_value, "cuStreamWriteValue32", 8000));
  CKPT_CHECK(symbols.find(allocate, "cuMemAlloc", 3020));
  CKPT_CHECK(symbols.find(free, "cuMemFree", 3020));
  CKPT_CHECK(symbols.find(memory_info, "cuMemGetInfo", 3020));
  CKPT_CHECK(symbols.find(allocate_host, "cuMemHostAlloc", 2020));
  CKPT_CHECK(symbols.find(free_host, "cuMemFreeHost", 2000));
  CKPT_CHECK(symbols.find(register_host, "cuMemHostRegister", 6050));
  CKPT_CHECK(symbols.find(unregister_host, "cuMemHostUnregister", 4000));
  return symbols.find(pointer_attribute, "cuPointerGetAttribute", 4000);
}

// A function that the driver lacks stays null: there is another way without it. They are looked up
// only in drivers of their version, since asking an older one is an error.
void CudaDriver::find_newer_functions(const CudaSymbols& symbols) {
  (void)symbols.find(load_module, "cuModuleLoadData", 2000);
  (void)symbols.find(module_function, "cuModuleGetFunction", 2000);
  (void)symbols.find(launch_kernel, "cuLaunchKernel", 4000);
  if (version >= version_of_context_id)
    (void)symbols.find(context_id, "cuCtxGetId", version_of_context_id);
  if (version >= version_of_batch_copy_without_index) {
    (void)symbols.find(copy_batch_13000, "cuMemcpyBatchAsync", version_of_batch_copy_without_index);
  } else if (version >= version_of_batch_copy) {
    (void)symbols.find(copy_batch_12080, "cuMemcpyBatchAsync", version_of_batch_copy);
  }
}

Status CudaDriver::check(CUresult result, std::string_view attempted) const {
  if (result == CUDA_SUCCESS) return {};
  const char* name = nullptr;
  const char* words = nullptr;
  (void)error_name(result, &name);
  (void)error_string(result, &words);
  const bool is_lost = is_context_lost(result);
  return fail(
      is_lost ? Errc::unavailable : Errc::io,
      fmt::format("{}: {} ({}): {}{}", attempted, name != nullptr ? name : "an unknown CUDA error",
                  static_cast<int>(result), words != nullptr ? words : "no description",
                  is_lost ? "; the GPU's context is lost, and only a new process gets "
                            "another"
                          : ""));
}

bool is_context_lost(CUresult result) {
  switch (static_cast<int>(result)) {
    case error_contained:
    case error_tensor_memory_leak:
    case error_mps_client_terminated:
    case error_external_device:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return true;
    default:
      return false;
  }
}

}  // namespace ckpt::device
