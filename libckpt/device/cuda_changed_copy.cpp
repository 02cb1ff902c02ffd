#include "device/cuda_changed_copy.hpp"

#include "base/assert.hpp"
#include "base/log.hpp"
#include "device/cuda_changed_copy_ptx.hpp"
#include "device/cuda_kernel.hpp"

namespace ckpt::device {

namespace {

// As for small tensors: enough for the rate of the link.
constexpr unsigned changed_copy_blocks = 8;
constexpr unsigned changed_copy_threads = 512;

}  // namespace

Status CudaChangedCopy::load(CUstream stream, const CudaFingerprint& fingerprint,
                             bool takes_host_pointers) {
  if (!is_wanted_) return {};
  Status loaded = load_and_try(stream, fingerprint, takes_host_pointers);
  if (!loaded) return give_up(loaded.error());
  CKPT_ASSERT(is_usable());
  return {};
}

Status CudaChangedCopy::load_and_try(CUstream stream, const CudaFingerprint& fingerprint,
                                     bool takes_host_pointers) {
  if (has_one_queue())
    return fail(Errc::unsupported,
                "with CUDA_DEVICE_MAX_CONNECTIONS=1 a kernel would wait for those of the training");
  if (!takes_host_pointers)
    return fail(Errc::unsupported, "this GPU does not use the host's addresses");
  if (!fingerprint.is_usable())
    return fail(Errc::unsupported, "the kernel for fingerprints is not there");
  const CudaKernel kernel{cuda_changed_copy_ptx, "ckpt_changed_copy", "changed tensors"};
  CKPT_TRY(function_, load_kernel(driver_, kernel));
  return queue({}, stream);
}

Status CudaChangedCopy::queue(const Launch& asked, CUstream stream) const {
  CKPT_ASSERT(function_ != nullptr);
  Launch launch = asked;
  CudaFingerprint::Launch& now = launch.now;
  void* arguments[] = {&now.entries,        &now.entry_count, &now.fragments,
                       &now.fragment_count, &now.chunk_bytes, &now.sums,
                       &launch.before,      &launch.slot,     &launch.copied};
  return driver_.check(
      driver_.launch_kernel(function_, changed_copy_blocks, 1, 1, changed_copy_threads, 1, 1, 0,
                            stream, arguments, nullptr),
      "launch the kernel for changed tensors");
}

Status CudaChangedCopy::give_up(const Error& why) {
  function_ = nullptr;
  if (why.code() == Errc::unavailable) return fail(Error(why));
  log_info("skip_unchanged: captures of this GPU copy unchanged tensors, too: {}", why.text());
  return {};
}

}  // namespace ckpt::device
