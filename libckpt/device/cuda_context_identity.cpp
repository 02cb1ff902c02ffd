#include "device/cuda_context_identity.hpp"

namespace ckpt::device {

ContextIdentity::ContextIdentity(const CudaDriver& driver, CUcontext context)
    : driver_(driver), context_(context) {
  unsigned long long id = 0;
  if (driver_.context_id != nullptr && driver_.context_id(context_, &id) == CUDA_SUCCESS) id_ = id;
}

Status ContextIdentity::check() const {
  if (!id_) return {};
  unsigned long long id = 0;
  switch (driver_.context_id(context_, &id)) {
    case CUDA_SUCCESS:
      if (id == *id_) return {};
      break;
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
      break;
    default:
      return {};
  }
  return fail(Errc::unavailable,
              "the GPU's context was destroyed by this process (cudaDeviceReset, or its end), and "
              "everything on the GPU with it; a new Checkpointer uses the next context");
}

}  // namespace ckpt::device
