// CudaDriver: the functions of the CUDA driver that libckpt calls, found at run time.
//
// Nothing links against libcuda. The toolkit's headers give the types; this machine's driver gives
// each function in the version that fits those types.
//
// Threads: any. Lifetime: outlives all that uses it; the library itself stays loaded.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <ckpt/result.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace ckpt::device {

// The headers of CUDA 12 declare no type for it.
using CopyBatch13000 = CUresult(CUDAAPI*)(CUdeviceptr* targets, CUdeviceptr* sources,
                                          std::size_t* sizes, std::size_t count,
                                          CUmemcpyAttributes* attributes, std::size_t* first,
                                          std::size_t attribute_count, CUstream stream);

struct CudaDriver {
  // Loads CKPT_CUDA_DRIVER, else libcuda.so.1 from where the loader or a container has it, and
  // initialises it. Errors: unsupported (no driver,
  // no GPU, or a driver older than CUDA 11.3; the text says which).
  static Result<std::unique_ptr<CudaDriver>> open();

  // Returns success, or an error with `attempted` and the driver's name for the failure. io: the
  // call was refused, the context lives on. unavailable: the context is lost.
  Status check(CUresult result, std::string_view attempted) const;

  bool has_batch_copy() const { return copy_batch_12080 != nullptr || copy_batch_13000 != nullptr; }

  std::string version_text() const;  // "CUDA 13.0".

  int version = 0;  // 13000 for CUDA 13.0.
  int device_count = 0;

  PFN_cuGetErrorName_v6000 error_name = nullptr;
  PFN_cuGetErrorString_v6000 error_string = nullptr;
  PFN_cuInit_v2000 init = nullptr;
  PFN_cuDeviceGetCount_v2000 get_device_count = nullptr;
  PFN_cuDeviceGet_v2000 get_device = nullptr;
  PFN_cuDeviceGetName_v2000 device_name = nullptr;
  PFN_cuDeviceGetAttribute_v2000 device_attribute = nullptr;
  PFN_cuDevicePrimaryCtxRetain_v7000 retain_context = nullptr;
  PFN_cuDevicePrimaryCtxRelease_v11000 release_context = nullptr;
  PFN_cuCtxPushCurrent_v4000 push_context = nullptr;
  PFN_cuCtxPopCurrent_v4000 pop_context = nullptr;
  PFN_cuCtxSynchronize_v2000 synchronize_context = nullptr;
  PFN_cuCtxGetStreamPriorityRange_v5050 priority_range = nullptr;
  PFN_cuStreamCreate_v2000 create_stream = nullptr;
  PFN_cuStreamCreateWithPriority_v5050 create_priority_stream = nullptr;
  PFN_cuStreamDestroy_v4000 destroy_stream = nullptr;
  PFN_cuStreamWaitEvent_v3020 wait_event = nullptr;
  PFN_cuStreamQuery_v2000 query_stream = nullptr;
  PFN_cuStreamGetCtx_v9020 context_of_stream = nullptr;
  PFN_cuStreamIsCapturing_v10000 is_capturing = nullptr;
  PFN_cuThreadExchangeStreamCaptureMode_v10010 exchange_capture_mode = nullptr;
  PFN_cuEventCreate_v2000 create_event = nullptr;
  PFN_cuEventDestroy_v4000 destroy_event = nullptr;
  PFN_cuEventRecord_v2000 record_event = nullptr;
  PFN_cuEventQuery_v2000 query_event = nullptr;
  PFN_cuMemcpyDtoHAsync_v3020 copy_to_host = nullptr;
  PFN_cuMemcpyHtoDAsync_v3020 copy_to_device = nullptr;
  PFN_cuMemsetD32Async_v3020 set_words = nullptr;
  PFN_cuStreamWriteValue32_v8000 write_value = nullptr;
  PFN_cuMemAlloc_v3020 allocate = nullptr;
  PFN_cuMemFree_v3020 free = nullptr;
  PFN_cuMemGetInfo_v3020 memory_info = nullptr;
  PFN_cuMemHostAlloc_v2020 allocate_host = nullptr;
  PFN_cuMemFreeHost_v2000 free_host = nullptr;
  PFN_cuMemHostRegister_v6050 register_host = nullptr;
  PFN_cuMemHostUnregister_v4000 unregister_host = nullptr;
  PFN_cuPointerGetAttribute_v4000 pointer_attribute = nullptr;
  // At most one of the two is set: CUDA 13.0 removed a parameter. Both may be null.
  PFN_cuMemcpyBatchAsync_v12080 copy_batch_12080 = nullptr;
  CopyBatch13000 copy_batch_13000 = nullptr;
  // For the kernel that gathers small tensors; null where the driver lacks them.
  PFN_cuModuleLoadData_v2000 load_module = nullptr;
  PFN_cuModuleGetFunction_v2000 module_function = nullptr;
  PFN_cuLaunchKernel_v4000 launch_kernel = nullptr;
  // From CUDA 12.0 on, where the driver has it; else null.
  PFN_cuCtxGetId_v12000 context_id = nullptr;

 private:
  Status find_functions(const class CudaSymbols& symbols);
  void find_newer_functions(const class CudaSymbols& symbols);
};

// Returns true for errors that destroy their context: nothing queued there runs any more.
bool is_context_lost(CUresult result);

// CudaScope: makes a GPU's context current on the calling thread; restores the trainer's at its
// end.
class CudaScope {
 public:
  CudaScope(const CudaDriver& driver, CUcontext context)
      : driver_(driver), result_(driver.push_context(context)) {}
  ~CudaScope() {
    CUcontext ours = nullptr;
    if (result_ == CUDA_SUCCESS) (void)driver_.pop_context(&ours);
  }
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

  Status status() const { return driver_.check(result_, "make the GPU's context current"); }

 private:
  const CudaDriver& driver_;
  const CUresult result_;
};

// RelaxedCapture: while it lives, calls of this thread do not break a CUDA graph that somebody is
// capturing on another stream.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaDriver& driver)
      : driver_(driver), is_set_(driver.exchange_capture_mode(&mode_) == CUDA_SUCCESS) {}
  ~RelaxedCapture() {
    if (is_set_) (void)driver_.exchange_capture_mode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const CudaDriver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // The trainer's, once exchanged.
  const bool is_set_;
};

}  // namespace ckpt::device
