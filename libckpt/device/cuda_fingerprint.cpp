#include "device/cuda_fingerprint.hpp"

#include <cstring>

#include "base/assert.hpp"
#include "device/cuda_fingerprint_ptx.hpp"
#include "device/cuda_kernel.hpp"

namespace ckpt::device {

namespace {

constexpr unsigned fingerprint_threads = 256;

}  // namespace

Status CudaFingerprint::load(CUstream stream) {
  const CudaKernel kernel{cuda_fingerprint_ptx, "ckpt_fingerprint", "fingerprints"};
  CKPT_TRY(function_, load_kernel(driver_, kernel));
  Status launched = queue({}, stream);
  if (!launched) function_ = nullptr;
  return launched;
}

Status CudaFingerprint::queue(const Launch& asked, CUstream stream) const {
  CKPT_ASSERT(function_ != nullptr);
  Launch launch = asked;
  void* arguments[] = {&launch.entries,        &launch.entry_count, &launch.fragments,
                       &launch.fragment_count, &launch.chunk_bytes, &launch.sums};
  return driver_.check(driver_.launch_kernel(function_, launch.blocks, 1, 1, fingerprint_threads, 1,
                                             1, 0, stream, arguments, nullptr),
                       "launch the kernel for fingerprints");
}

Result<std::unique_ptr<FingerprintTable>> FingerprintTable::make(const CudaDriver& driver,
                                                                 const FingerprintPlan& plan,
                                                                 const Shape& shape) {
  CKPT_ASSERT(shape.chunks > 0);
  std::unique_ptr<FingerprintTable> made(new FingerprintTable(driver));
  CudaFingerprint::Launch& launch = made->launch_;
  launch.chunk_bytes = shape.chunk_bytes;
  launch.entry_count = static_cast<unsigned>(plan.entries.size());
  launch.fragment_count = static_cast<unsigned>(plan.fragments.size());
  const auto entries = std::as_bytes(std::span(plan.entries));
  const auto fragments = std::as_bytes(std::span(plan.fragments));
  if (const std::size_t bytes = entries.size() + fragments.size(); bytes > 0) {
    CKPT_TRY(made->table_, CudaMirror::make(driver, bytes, "a table of fingerprints"));
    const auto table = made->table_->on_host();
    if (!entries.empty()) std::memcpy(table.data(), entries.data(), entries.size());
    if (!fragments.empty())
      std::memcpy(table.data() + entries.size(), fragments.data(), fragments.size());
    launch.entries = made->table_->on_gpu();
    launch.fragments = launch.entries + entries.size();
  }
  CKPT_TRY(made->sums_,
           CudaMirror::make(driver, shape.chunks * sizeof(FingerprintSums), "fingerprints"));
  launch.sums = made->sums_->on_gpu();
  return made;
}

Status FingerprintTable::queue(const CudaFingerprint& kernel, CUstream stream, unsigned blocks) {
  if (table_ && !is_sent_) {
    CKPT_CHECK(table_->to_gpu(stream));
    is_sent_ = true;
  }
  CKPT_CHECK(
      driver_.check(driver_.set_words(launch_.sums, 0, sums().size() * words_per_sum, stream),
                    "clear the fingerprints on the GPU"));
  CKPT_CHECK(queue_kernel(kernel, stream, blocks));
  return sums_->to_host(stream, {0, sums().size_bytes()});
}

Status FingerprintTable::queue_kernel(const CudaFingerprint& kernel, CUstream stream,
                                      unsigned blocks) const {
  CudaFingerprint::Launch launch = launch_;
  launch.blocks = blocks;
  return kernel.queue(launch, stream);
}

void FingerprintTable::forget() {
  if (table_) table_->forget();
  sums_->forget();
}

std::span<const FingerprintSums> FingerprintTable::sums() const {
  const auto bytes = sums_->on_host();
  return {reinterpret_cast<const FingerprintSums*>(bytes.data()),
          bytes.size() / sizeof(FingerprintSums)};
}

}  // namespace ckpt::device
