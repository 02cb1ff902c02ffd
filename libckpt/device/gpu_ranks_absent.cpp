// The implementation of ckpt/gpu_ranks.hpp for builds without CUDA's headers: nothing opens.
#include <ckpt/gpu_ranks.hpp>

namespace ckpt {

class GpuRanks::Impl {};

namespace {

Error absent() {
  return {Errc::unsupported,
          "this libckpt was built without GPU support (no CUDA headers were found then)"};
}

}  // namespace

GpuRanks::GpuRanks(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GpuRanks::GpuRanks(GpuRanks&&) noexcept = default;
GpuRanks& GpuRanks::operator=(GpuRanks&&) noexcept = default;
GpuRanks::~GpuRanks() = default;

Result<GpuRanks> GpuRanks::open(const Options&) {
  return fail(absent());
}
Result<GpuRanks::Id> GpuRanks::make_id(std::chrono::milliseconds) {
  return fail(absent());
}
Status GpuRanks::join(const Place&) {
  return fail(absent());
}
Status GpuRanks::broadcast(const GpuBroadcast&) {
  return fail(absent());
}
Status GpuRanks::close(std::chrono::milliseconds) {
  return fail(absent());
}
bool GpuRanks::is_quiet() const {
  return true;
}
std::string GpuRanks::library_name() const {
  return {};
}

}  // namespace ckpt
