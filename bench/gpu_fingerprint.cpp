// Fingerprints on a GPU against the rate at which a copy within its memory reads.
//
// A copy reads each byte once and writes it once. Its rate here is the bytes copied by the time, so
// the memory moves twice as much.
#include <string>

#include "bench/gpu_parts.hpp"
#include "device/cuda_fingerprint.hpp"

namespace bench {

using ckpt::GiB;
using ckpt::MiB;
using ckpt::device::CudaFingerprint;
using ckpt::device::FingerprintTable;
using ckpt::test::GpuTrainer;

namespace {

constexpr unsigned few_blocks = 32;  // Beside a training step: the rest is the trainer's.

struct Shape {
  const char* id;
  const char* what;
  std::size_t tensor_bytes;
  std::size_t gap_bytes;  // In memory, behind each tensor.
  unsigned blocks = CudaFingerprint::blocks_of_a_whole_gpu;
};

// The tensors lie in one allocation, and one behind the other in the Slot.
std::vector<ckpt::device::CopyPiece> pieces_of(const std::byte* memory, std::size_t bytes,
                                               const Shape& shape) {
  std::vector<ckpt::device::CopyPiece> pieces;
  std::uint64_t offset = 0;
  for (std::size_t at = 0; at + shape.tensor_bytes <= bytes;
       at += shape.tensor_bytes + shape.gap_bytes) {
    pieces.push_back({memory + at, offset, shape.tensor_bytes});
    offset += shape.tensor_bytes;
  }
  return pieces;
}

// CopyWithin: from one half of an allocation to the other.
class CopyWithin {
 public:
  CopyWithin(GpuTrainer& trainer, const std::byte* source, std::size_t bytes)
      : trainer_(trainer),
        copy_(trainer.find<PFN_cuMemcpyDtoDAsync_v3020>("cuMemcpyDtoDAsync", 3020)),
        source_(source),
        target_(trainer.allocate(bytes)),
        bytes_(bytes) {}
  ~CopyWithin() { trainer_.free(target_); }
  CopyWithin(const CopyWithin&) = delete;
  CopyWithin& operator=(const CopyWithin&) = delete;

  bool is_known() const { return copy_ != nullptr; }
  // Several at once, so that the start of the first one does not count.
  double bytes_read(int times) {
    return rate(static_cast<double>(bytes_) * times, [&] {
      for (int i = 0; i < times; ++i)
        check(copy_(on_gpu(target_), on_gpu(source_), bytes_, stream_of(trainer_)));
      trainer_.spin();
    });
  }

 private:
  GpuTrainer& trainer_;
  const PFN_cuMemcpyDtoDAsync_v3020 copy_;
  const std::byte* const source_;
  std::byte* const target_;
  const std::size_t bytes_;
};

}  // namespace

void measure_fingerprint(Harness& harness, GpuTrainer& trainer) {
  constexpr int times = 8;
  constexpr Shape shapes[] = {
      {"G11", "fingerprints of 64 MiB tensors / copy within the GPU", 64 * MiB, 0},
      {"G11 small", "of tensors of 52 KiB (20,000 for each GiB)", 52 * ckpt::KiB, 256},
      {"G11 odd", "of tensors of 1 MiB and 2 bytes, which lie at odd words", MiB + 2, 254},
      {"G11 few", "of 64 MiB tensors, by 32 blocks", 64 * MiB, 0, few_blocks},
  };
  const std::size_t bytes = harness.bytes();
  std::byte* const memory = trainer.allocate(bytes);
  trainer.fill(memory, 0x5a5a5a5a, bytes / sizeof(std::uint32_t));
  CudaFingerprint kernel(trainer.driver());
  must(kernel.load(stream_of(trainer)));
  CopyWithin copy(trainer, memory, bytes);
  harness.add_condition("a copy's rate is the bytes it reads, and it writes as many");
  for (const Shape& shape : shapes) {
    const auto pieces = pieces_of(memory, bytes, shape);
    if (pieces.empty() || !copy.is_known()) {
      fmt::print("{} skipped: {}\n", shape.id,
                 pieces.empty() ? "--size is too small" : "the driver copies nothing within a GPU");
      continue;
    }
    const std::uint64_t end = pieces.back().slot_offset + pieces.back().bytes;
    const auto plan = ckpt::device::plan_fingerprints(pieces, ckpt::default_chunk_bytes);
    const auto table = must(FingerprintTable::make(
        trainer.driver(), plan,
        {ckpt::default_chunk_bytes,
         static_cast<std::size_t>(ckpt::div_ceil(end, ckpt::default_chunk_bytes))}));
    must(table->queue(kernel, stream_of(trainer)));
    trainer.spin();
    const bool is_judged = shape.blocks != few_blocks;
    harness.compare(
        {shape.id, shape.what, 0.6, 0.3, Better::higher, "", is_judged},
        [&] {
          return rate(static_cast<double>(end) * times, [&] {
            for (int i = 0; i < times; ++i)
              must(table->queue_kernel(kernel, stream_of(trainer), shape.blocks));
            trainer.spin();
          });
        },
        [&] { return copy.bytes_read(times); });
  }
  trainer.free(memory);
}

}  // namespace bench
