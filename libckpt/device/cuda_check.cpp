#include "device/cuda_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/assert.hpp"

namespace ckpt::device {

namespace {

// Of a GPU's hundred cores or more; the others go on with the training.
constexpr unsigned blocks = 32;
constexpr std::size_t words_per_sum = sizeof(FingerprintSums) / sizeof(std::uint32_t);

std::vector<CopyPiece> pieces_of(const CudaBatches& plan, const CudaBatch& batch) {
  std::vector<CopyPiece> pieces;
  const auto add = [&](std::span<const CudaCopy> copies) {
    for (const CudaCopy& copy : copies)
      pieces.push_back({copy.source, copy.slot_offset, copy.bytes});
  };
  add(std::span(plan.copies).subspan(batch.first_copy, batch.copy_count));
  add(std::span(plan.gathered).subspan(batch.first_gathered, batch.gathered_count));
  std::sort(pieces.begin(), pieces.end(),
            [](const CopyPiece& a, const CopyPiece& b) { return a.slot_offset < b.slot_offset; });
  return pieces;
}

}  // namespace

Result<std::unique_ptr<CudaCheck>> CudaCheck::make(const CudaDriver& driver, CudaMirrors& mirrors,
                                                   const CudaBatches& plan) {
  std::unique_ptr<CudaCheck> check(new CudaCheck(driver, mirrors));
  for (const CudaBatch& batch : plan.batches) check->add_batch(pieces_of(plan, batch));
  CKPT_CHECK(check->allocate());
  return check;
}

void CudaCheck::add_batch(std::vector<CopyPiece> pieces) {
  CKPT_ASSERT(!pieces.empty());
  const FingerprintPlan made = plan_fingerprints(pieces, part_bytes);
  Batch batch;
  batch.first_entry = plan_.entries.size();
  batch.entry_count = made.entries.size();
  batch.first_fragment = plan_.fragments.size();
  batch.fragment_count = made.fragments.size();
  batch.first_part = pieces.front().slot_offset / part_bytes;
  const std::uint64_t end = pieces.back().slot_offset + pieces.back().bytes;
  batch.part_count = static_cast<std::size_t>(div_ceil(end, part_bytes) - batch.first_part);
  batch.first_sum = sum_count();
  batches_.push_back(batch);
  plan_.entries.insert(plan_.entries.end(), made.entries.begin(), made.entries.end());
  plan_.fragments.insert(plan_.fragments.end(), made.fragments.begin(), made.fragments.end());
}

std::size_t CudaCheck::sum_count() const {
  return batches_.empty() ? 0 : batches_.back().first_sum + batches_.back().part_count;
}

Status CudaCheck::allocate() {
  std::size_t parts_max = 0;
  std::size_t fragments_max = 0;
  for (const Batch& batch : batches_) {
    parts_max = std::max(parts_max, batch.part_count);
    fragments_max = std::max(fragments_max, batch.fragment_count);
  }
  in_slot_.resize(parts_max);
  fragments_in_slot_.resize(fragments_max);
  const auto entries = std::as_bytes(std::span(plan_.entries));
  const auto fragments = std::as_bytes(std::span(plan_.fragments));
  CKPT_TRY(table_, mirrors_.take(entries.size() + fragments.size(), "a table of fingerprints"));
  std::byte* const table = table_->on_host().data();
  std::copy(entries.begin(), entries.end(), table);
  std::copy(fragments.begin(), fragments.end(), table + entries.size());
  CKPT_TRY(sums_, mirrors_.take(sum_count() * sizeof(FingerprintSums), "fingerprints"));
  return {};
}

Status CudaCheck::queue(const CudaFingerprint& kernel, std::size_t index, CUstream stream) {
  const Batch& batch = batches_[index];
  if (!is_sent_) CKPT_CHECK(table_->to_gpu(stream));
  is_sent_ = true;
  const std::uint64_t first_byte = batch.first_sum * sizeof(FingerprintSums);
  const CUdeviceptr sums = sums_->on_gpu() + first_byte;
  CKPT_CHECK(driver_.check(driver_.set_words(sums, 0, batch.part_count * words_per_sum, stream),
                           "clear the fingerprints on the GPU"));
  CudaFingerprint::Launch launch;
  launch.entries = table_->on_gpu() + batch.first_entry * sizeof(FingerprintEntry);
  launch.entry_count = static_cast<unsigned>(batch.entry_count);
  launch.fragments =
      table_->on_gpu() + (plan_.entries.size() + batch.first_fragment) * sizeof(FingerprintEntry);
  launch.fragment_count = static_cast<unsigned>(batch.fragment_count);
  launch.chunk_bytes = part_bytes;
  // The kernel counts parts from the Slot's first one.
  launch.sums = sums - batch.first_part * sizeof(FingerprintSums);
  launch.blocks = blocks;
  CKPT_CHECK(kernel.queue(launch, stream));
  return sums_->to_host(stream, {first_byte, batch.part_count * sizeof(FingerprintSums)});
}

Status CudaCheck::compare(std::size_t batch, std::span<const std::byte> slot,
                          CopyListener& listener) {
  const auto different = difference(batch, slot);
  if (!different) return {};
  std::string name = listener.name_of(*different);
  if (name.empty())
    name = fmt::format("bytes from {} to {} of the Slot", different->offset,
                       different->offset + different->bytes);
  return fail(
      Errc::corruption,
      fmt::format("gpu_check: the copy of {} is not what the GPU read before it: a fault of "
                  "the link or of memory, or a tensor that was changed before guard()",
                  name));
}

// The first bytes of the Slot that are not as the GPU read them.
std::optional<Stretch> CudaCheck::difference(std::size_t index, std::span<const std::byte> slot) {
  const Batch& batch = batches_[index];
  add_slot(batch, slot);
  for (std::size_t part = 0; part < batch.part_count; ++part) {
    FingerprintSums on_gpu;
    std::memcpy(&on_gpu,
                sums_->on_host().data() + (batch.first_sum + part) * sizeof(FingerprintSums),
                sizeof(on_gpu));
    if (FingerprintSum(on_gpu).finish(0) == in_slot_[part].finish(0)) continue;
    const std::uint64_t offset = (batch.first_part + part) * part_bytes;
    return Stretch{offset, std::min<std::uint64_t>(part_bytes, slot.size() - offset)};
  }
  return std::nullopt;
}

// Into `in_slot_`, from the same entries as the kernel's.
void CudaCheck::add_slot(const Batch& batch, std::span<const std::byte> slot) {
  const auto sum_of = [&](const FingerprintEntry& entry) -> FingerprintSum& {
    return in_slot_[entry.slot_offset / part_bytes - batch.first_part];
  };
  std::fill_n(in_slot_.begin(), batch.part_count, FingerprintSum());
  for (std::size_t i = 0; i < batch.entry_count; ++i) {
    const FingerprintEntry& entry = plan_.entries[batch.first_entry + i];
    sum_of(entry).add(slot.subspan(entry.slot_offset, entry.bytes), entry.slot_offset % part_bytes);
  }
  const auto count = static_cast<unsigned>(batch.fragment_count);
  for (unsigned i = 0; i < count; ++i) {
    FingerprintEntry& fragment = fragments_in_slot_[i];
    fragment = plan_.fragments[batch.first_fragment + i];
    CKPT_ASSERT(fragment.slot_offset + fragment.bytes <= slot.size());
    fragment.source = reinterpret_cast<std::uint64_t>(slot.data() + fragment.slot_offset);
  }
  for (unsigned i = 0; i < count; ++i) {
    FingerprintSums added;
    if (add_fragments(fragments_in_slot_.data(), count, i, part_bytes, added))
      sum_of(fragments_in_slot_[i]).add(FingerprintSum(added));
  }
}

CudaCheck::~CudaCheck() {
  for (auto* memory : {&table_, &sums_})
    if (*memory) mirrors_.give_back(std::move(*memory));
}

void CudaCheck::forget() {
  for (auto* memory : {&table_, &sums_}) {
    (*memory)->forget();
    memory->reset();
  }
}

}  // namespace ckpt::device
