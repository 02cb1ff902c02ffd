#include "device/cuda_batches.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"

namespace ckpt::device {

namespace {

class BatchPlanner {
 public:
  BatchPlanner(const BatchLimits& limits, const BeginsMemory& begins_memory)
      : limits_(limits), begins_memory_(begins_memory) {}

  void add_strip(const CopyList& list, std::size_t index) {
    const Strip& strip = list.strips[index];
    if (batch_.bytes > 0 && batch_.bytes + strip.bytes > limits_.bytes) end_batch();
    for (std::size_t i = 0; i < strip.piece_count; ++i) add(list.pieces[strip.first_piece + i]);
    batch_.strips_end = index + 1;
    if (batch_.copy_count >= limits_.copies || batch_.bytes >= limits_.bytes) end_batch();
  }
  CudaBatches take(std::size_t strip_count) {
    if (batch_.copy_count > 0) end_batch();
    // The last batch also covers the final strips, if they are nothing but padding.
    if (!plan_.batches.empty()) plan_.batches.back().strips_end = strip_count;
    return std::move(plan_);
  }

 private:
  void add(const CopyPiece& piece) {
    for (std::uint64_t done = 0; done < piece.bytes;) {
      const std::uint64_t offset = piece.slot_offset + done;
      const std::uint64_t room = limits_.pin_piece_bytes - offset % limits_.pin_piece_bytes;
      const std::uint64_t bytes = std::min(room, piece.bytes - done);
      if (piece.source == nullptr) {
        plan_.zeros.push_back({nullptr, offset, bytes});
      } else {
        add_copy({piece.source + done, offset, bytes});
      }
      done += bytes;
    }
  }

  void add_copy(const CudaCopy& copy) {
    if (continues_last(copy)) {
      plan_.copies.back().bytes += copy.bytes;
    } else {
      if (batch_.copy_count >= limits_.copies) end_batch();
      plan_.copies.push_back(copy);
      ++batch_.copy_count;
    }
    batch_.bytes += copy.bytes;
  }

  bool continues_last(const CudaCopy& copy) const {
    if (batch_.copy_count == 0 || copy.slot_offset % limits_.pin_piece_bytes == 0) return false;
    const CudaCopy& last = plan_.copies.back();
    return last.source + last.bytes == copy.source &&
           last.slot_offset + last.bytes == copy.slot_offset && !begins_memory_(copy.source);
  }

  void end_batch() {
    CKPT_ASSERT(batch_.copy_count > 0);
    plan_.batches.push_back(batch_);
    batch_ = {};
    batch_.first_copy = plan_.copies.size();
    batch_.strips_end = plan_.batches.back().strips_end;
  }

  const BatchLimits limits_;
  const BeginsMemory& begins_memory_;
  CudaBatches plan_;
  CudaBatch batch_;
};

}  // namespace

CudaBatches plan_batches(const CopyList& list, const BatchLimits& limits,
                         const BeginsMemory& begins_memory) {
  CKPT_ASSERT(limits.bytes > 0);
  CKPT_ASSERT(limits.copies > 0);
  BatchPlanner planner(limits, begins_memory);
  for (std::size_t index = 0; index < list.strips.size(); ++index) planner.add_strip(list, index);
  return planner.take(list.strips.size());
}

}  // namespace ckpt::device
