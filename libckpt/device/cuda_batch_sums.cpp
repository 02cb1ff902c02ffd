#include "device/cuda_batch_sums.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.hpp"

namespace ckpt::device {

namespace {

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

Result<std::unique_ptr<CudaBatchSums>> CudaBatchSums::make(const CudaDriver& driver,
                                                           CudaMirrors& mirrors,
                                                           const CudaBatches& plan,
                                                           std::size_t areas) {
  CKPT_ASSERT(areas > 0);
  std::unique_ptr<CudaBatchSums> made(new CudaBatchSums(driver, mirrors));
  for (const CudaBatch& batch : plan.batches) made->add_batch(pieces_of(plan, batch));
  CKPT_CHECK(made->allocate(areas));
  return made;
}

void CudaBatchSums::add_batch(std::vector<CopyPiece> pieces) {
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
  batch.first_sum = sums_each();
  batches_.push_back(batch);
  plan_.entries.insert(plan_.entries.end(), made.entries.begin(), made.entries.end());
  plan_.fragments.insert(plan_.fragments.end(), made.fragments.begin(), made.fragments.end());
}

std::size_t CudaBatchSums::sums_each() const {
  return batches_.empty() ? 0 : batches_.back().first_sum + batches_.back().part_count + 1;
}

Status CudaBatchSums::allocate(std::size_t areas) {
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
  CKPT_TRY(sums_, mirrors_.take(areas * sums_each() * sizeof(FingerprintSums), "fingerprints"));
  return {};
}

// In the mirror of the sums, the count included.
Stretch CudaBatchSums::bytes_of(const Place& place) const {
  CKPT_ASSERT(place.batch < batches_.size());
  const Batch& batch = batches_[place.batch];
  const Stretch bytes{(place.area * sums_each() + batch.first_sum) * sizeof(FingerprintSums),
                      (batch.part_count + 1) * sizeof(FingerprintSums)};
  CKPT_ASSERT(bytes.offset + bytes.bytes <= sums_->on_host().size());
  return bytes;
}

CudaFingerprint::Launch CudaBatchSums::launch_of(const Place& place) const {
  const Batch& batch = batches_[place.batch];
  CudaFingerprint::Launch launch;
  launch.entries = table_->on_gpu() + batch.first_entry * sizeof(FingerprintEntry);
  launch.entry_count = static_cast<unsigned>(batch.entry_count);
  launch.fragments =
      table_->on_gpu() + (plan_.entries.size() + batch.first_fragment) * sizeof(FingerprintEntry);
  launch.fragment_count = static_cast<unsigned>(batch.fragment_count);
  launch.chunk_bytes = part_bytes;
  launch.sums =
      sums_->on_gpu() + bytes_of(place).offset - batch.first_part * sizeof(FingerprintSums);
  return launch;
}

CUdeviceptr CudaBatchSums::count_on_gpu(const Place& place) const {
  const Stretch bytes = bytes_of(place);
  return sums_->on_gpu() + bytes.offset + bytes.bytes - sizeof(FingerprintSums);
}

Status CudaBatchSums::queue(const CudaFingerprint& kernel, const Place& place, unsigned blocks,
                            CUstream stream) {
  if (!is_sent_) CKPT_CHECK(table_->to_gpu(stream));
  is_sent_ = true;
  CKPT_CHECK(driver_.check(
      driver_.set_words(sums_->on_gpu() + bytes_of(place).offset, 0,
                        (batches_[place.batch].part_count + 1) * words_per_sum, stream),
      "clear the fingerprints on the GPU"));
  CudaFingerprint::Launch launch = launch_of(place);
  launch.blocks = blocks;
  return kernel.queue(launch, stream);
}

Status CudaBatchSums::queue_to_host(const Place& place, bool with_count, CUstream stream) const {
  Stretch bytes = bytes_of(place);
  if (!with_count) bytes.bytes -= sizeof(FingerprintSums);
  return sums_->to_host(stream, bytes);
}

Stretch CudaBatchSums::part_in_slot(std::size_t batch, std::size_t part,
                                    std::uint64_t slot_bytes) const {
  const std::uint64_t offset = (batches_[batch].first_part + part) * part_bytes;
  CKPT_ASSERT(offset < slot_bytes);
  return {offset, std::min<std::uint64_t>(part_bytes, slot_bytes - offset)};
}

FingerprintSums CudaBatchSums::on_gpu(const Place& place, std::size_t part) const {
  CKPT_ASSERT(part <= batches_[place.batch].part_count);
  FingerprintSums sums;
  const std::byte* const first = sums_->on_host().data() + bytes_of(place).offset;
  std::memcpy(&sums, first + part * sizeof(sums), sizeof(sums));
  return sums;
}

std::uint64_t CudaBatchSums::count(const Place& place) const {
  return on_gpu(place, batches_[place.batch].part_count).low;
}

// Into `in_slot_`, from the same entries as the kernel's.
std::uint64_t CudaBatchSums::take_slot(std::size_t index, std::span<const std::byte> slot,
                                       std::span<const std::uint8_t> is_chosen) {
  const Batch& batch = batches_[index];
  CKPT_ASSERT(is_chosen.size() >= batch.part_count);
  std::uint64_t bytes = 0;
  const auto part_of = [&](const FingerprintEntry& entry) {
    return static_cast<std::size_t>(entry.slot_offset / part_bytes - batch.first_part);
  };
  std::fill_n(in_slot_.begin(), batch.part_count, FingerprintSum());
  for (std::size_t i = 0; i < batch.entry_count; ++i) {
    const FingerprintEntry& entry = plan_.entries[batch.first_entry + i];
    const std::size_t part = part_of(entry);
    if (is_chosen[part] == 0) continue;
    in_slot_[part].add(slot.subspan(entry.slot_offset, entry.bytes),
                       entry.slot_offset % part_bytes);
    bytes += entry.bytes;
  }
  unsigned count = 0;
  for (std::size_t i = 0; i < batch.fragment_count; ++i) {
    FingerprintEntry fragment = plan_.fragments[batch.first_fragment + i];
    if (is_chosen[part_of(fragment)] == 0) continue;
    CKPT_ASSERT(fragment.slot_offset + fragment.bytes <= slot.size());
    fragment.source = reinterpret_cast<std::uint64_t>(slot.data() + fragment.slot_offset);
    fragments_in_slot_[count++] = fragment;
    bytes += fragment.bytes;
  }
  for (unsigned i = 0; i < count; ++i) {
    FingerprintSums added;
    if (add_fragments(fragments_in_slot_.data(), count, i, part_bytes, added))
      in_slot_[part_of(fragments_in_slot_[i])].add(FingerprintSum(added));
  }
  return bytes;
}

CudaBatchSums::~CudaBatchSums() {
  for (auto* memory : {&table_, &sums_})
    if (*memory) mirrors_.give_back(std::move(*memory));
}

void CudaBatchSums::forget() {
  for (auto* memory : {&table_, &sums_}) {
    (*memory)->forget();
    memory->reset();
  }
}

}  // namespace ckpt::device
