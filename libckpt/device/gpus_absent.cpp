// The implementation of gpus.hpp for builds without CUDA's headers.
#include "device/gpus.hpp"

namespace ckpt::device {

namespace {

Unexpected built_without() {
  return fail(Errc::unsupported,
              "this libckpt was built without GPU support (no CUDA headers were found then): pass "
              "tensors in host memory");
}

}  // namespace

Result<std::unique_ptr<Gpus>> Gpus::open(const GpuOptions&, std::shared_ptr<MemoryPins>) {
  return built_without();
}

Result<std::string> describe_gpus() {
  return built_without();
}

}  // namespace ckpt::device
