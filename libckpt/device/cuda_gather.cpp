#include "device/cuda_gather.hpp"

#include <cstring>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "device/cuda_gather_ptx.hpp"
#include "device/cuda_kernel.hpp"

namespace ckpt::device {

namespace {

// Few of a GPU's hundred cores, and enough for 48 of the 55 GB/s that a PCIe 5 link takes.
constexpr unsigned gather_blocks = 8;
constexpr unsigned gather_threads = 512;

constexpr std::uint64_t small_bytes = 64 * KiB;  // From here on the copy engine is as fast.
constexpr std::size_t copies_min = 64;  // Fewer cost less than what a kernel takes from training.

}  // namespace

GatherLimits CudaGather::limits() const {
  if (!is_usable()) return {};
  return {small_bytes, choice_ == GpuGather::on ? 1 : copies_min};
}

Status CudaGather::load(CUstream stream, bool takes_host_pointers) {
  if (choice_ == GpuGather::off) return {};
  if (choice_ == GpuGather::automatic && has_one_queue()) {
    log_info(
        "gpu_gather=auto is off: with CUDA_DEVICE_MAX_CONNECTIONS=1 a kernel would wait for "
        "those of the training");
    return {};
  }
  Status loaded = takes_host_pointers
                      ? load_and_try(stream)
                      : fail(Errc::unsupported, "this GPU does not use the host's addresses");
  if (!loaded) return give_up(loaded.error());
  return {};
}

Status CudaGather::load_and_try(CUstream stream) {
  const CudaKernel kernel{cuda_gather_ptx, "ckpt_gather", "small tensors"};
  CKPT_TRY(function_, load_kernel(driver_, kernel));
  return driver_.check(launch(0, 0, 1, nullptr, stream), "launch the kernel for small tensors");
}

// Said once: it is not tried again.
Status CudaGather::give_up(const Error& why) {
  function_ = nullptr;
  if (why.code() == Errc::unavailable) return fail(Error(why));
  log_info("gpu_gather: small tensors of this GPU are copied without a kernel: {}", why.text());
  return {};
}

CUresult CudaGather::launch(CUdeviceptr entries, unsigned count, unsigned parts, std::byte* slot,
                            CUstream stream) {
  CKPT_ASSERT(function_ != nullptr);
  void* arguments[] = {&entries, &count, &parts, &slot};
  return driver_.launch_kernel(function_, gather_blocks, 1, 1, gather_threads, 1, 1, 0, stream,
                               arguments, nullptr);
}

Result<bool> CudaGather::queue(GatherTable& table, const Launch& asked, CUstream stream) {
  CKPT_ASSERT(!asked.copies.empty());
  Status queued = table.send(stream);
  if (queued)
    queued =
        driver_.check(launch(table.entry(asked.first), static_cast<unsigned>(asked.copies.size()),
                             gather_parts(asked.copies), asked.slot, stream),
                      "launch the kernel for small tensors");
  if (queued) return true;
  CKPT_CHECK(give_up(queued.error()));
  return false;
}

Result<std::unique_ptr<GatherTable>> GatherTable::make(CudaMirrors& mirrors,
                                                       std::span<const GatherEntry> entries) {
  CKPT_ASSERT(!entries.empty());
  std::unique_ptr<GatherTable> table(new GatherTable(mirrors));
  CKPT_TRY(table->memory_, mirrors.take(entries.size_bytes(), "a table of small tensors"));
  std::memcpy(table->memory_->on_host().data(), entries.data(), entries.size_bytes());
  return table;
}

GatherTable::~GatherTable() {
  if (memory_) mirrors_.give_back(std::move(memory_));
}

void GatherTable::forget() {
  memory_->forget();
  memory_.reset();
}

Status GatherTable::send(CUstream stream) {
  if (is_sent_) return {};
  CKPT_CHECK(memory_->to_gpu(stream));
  is_sent_ = true;
  return {};
}

}  // namespace ckpt::device
