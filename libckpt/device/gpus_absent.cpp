// The implementation of gpus.hpp for builds without CUDA's headers.
#include "device/gpus.hpp"

namespace ckpt::device {

Result<std::unique_ptr<Gpus>> Gpus::open(const GpuOptions&, std::shared_ptr<MemoryPins>) {
  return fail(Errc::unsupported,
              "this libckpt was built without GPU support (no CUDA headers were found then): pass "
              "tensors in host memory");
}

}  // namespace ckpt::device
