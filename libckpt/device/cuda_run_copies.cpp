// How a run queues the copies of a batch: small ones by the kernel where it can, the rest by the
// engine in one call where the driver has that, else one by one.
#include "base/assert.hpp"
#include "base/log.hpp"
#include "device/cuda_run.hpp"

namespace ckpt::device {

namespace {

CUdeviceptr on_gpu(const std::byte* address) {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(address));
}

}  // namespace

std::byte* CudaRun::target_of(const CudaCopy& copy, std::byte* ring_half,
                              std::uint64_t ring_offset) const {
  if (ring_half != nullptr) return ring_half + ring_offset;
  CKPT_ASSERT(copy.slot_offset + copy.bytes <= slot_.size());
  return slot_.data() + copy.slot_offset;
}

CudaRun::Copies CudaRun::copies_of(std::size_t first, std::size_t last) const {
  const CudaBatch& begin = plan_.batches[first];
  const CudaBatch& end = plan_.batches[last];
  return {std::span(plan_.copies)
              .subspan(begin.first_copy, end.first_copy + end.copy_count - begin.first_copy),
          std::span(plan_.gathered)
              .subspan(begin.first_gathered,
                       end.first_gathered + end.gathered_count - begin.first_gathered)};
}

void CudaRun::add_targets(std::span<const CudaCopy> copies, std::byte* ring_half,
                          std::uint64_t& offset) {
  for (const CudaCopy& copy : copies) {
    targets_.push_back(on_gpu(target_of(copy, ring_half, offset)));
    sources_.push_back(on_gpu(copy.source));
    sizes_.push_back(copy.bytes);
    offset += copy.bytes;
  }
}

Status CudaRun::queue_copies(const Copies& copies, std::byte* ring_half) {
  bool is_gathered = false;
  // The ring has no place for each of them that the table could name.
  if (!copies.gathered.empty() && table_ && ring_half == nullptr && queue_.gather.is_usable()) {
    const CudaCopy& last = copies.gathered.back();
    CKPT_ASSERT(last.slot_offset + last.bytes <= slot_.size());
    const auto first = static_cast<std::size_t>(copies.gathered.data() - plan_.gathered.data());
    CKPT_TRY(is_gathered,
             queue_.gather.queue(*table_, {first, copies.gathered, slot_.data()}, queue_.stream));
  }
  targets_.clear();
  sources_.clear();
  sizes_.clear();
  std::uint64_t ring_offset = 0;
  add_targets(copies.by_engine, ring_half, ring_offset);
  if (!is_gathered) add_targets(copies.gathered, ring_half, ring_offset);
  if (targets_.size() > 1 && queue_.is_batch_copy_usable) {
    const CUresult result = queue_together();
    if (result != CUDA_ERROR_NOT_SUPPORTED)
      return queue_.driver.check(result, "queue a batch of copies from the GPU");
    queue_.is_batch_copy_usable = false;
    log_info("the driver copies small tensors of this GPU one by one: it does not take batches");
  }
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    CKPT_CHECK(
        queue_.driver.check(queue_.driver.copy_to_host(reinterpret_cast<void*>(targets_[i]),
                                                       sources_[i], sizes_[i], queue_.stream),
                            "queue a copy from the GPU"));
  }
  return {};
}

CUresult CudaRun::queue_together() {
  CUmemcpyAttributes attributes{};
  // Each source is read in stream order, after the trainer's last update wrote it.
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  if (queue_.prefers_overlap) attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
  std::size_t first = 0;
  std::size_t failed = 0;  // CUDA 12 does not document a null pointer here.
  const CudaDriver& driver = queue_.driver;
  return driver.copy_batch_13000 != nullptr
             ? driver.copy_batch_13000(targets_.data(), sources_.data(), sizes_.data(),
                                       targets_.size(), &attributes, &first, 1, queue_.stream)
             : driver.copy_batch_12080(targets_.data(), sources_.data(), sizes_.data(),
                                       targets_.size(), &attributes, &first, 1, &failed,
                                       queue_.stream);
}

}  // namespace ckpt::device
