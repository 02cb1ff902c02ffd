// Goal:   the kernel's fingerprints of tensors on a GPU are those that the processor takes of the
//         Slot's bytes, bit for bit, wherever the tensors lie and whatever their sizes are.
// Method: tensors of random bytes at every address modulo 16, of sizes around words, entries and
//         Chunks, one behind the other in a Slot as a Layout has them; on whatever driver is there.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "base/fingerprint.hpp"
#include "base/random.hpp"
#include "base/units.hpp"
#include "device/cuda_fingerprint.hpp"
#include "gpu/gpu_here.hpp"
#include "support/random_bytes.hpp"

namespace ckpt::test {

using device::CopyPiece;
using device::CudaFingerprint;
using device::FingerprintTable;

namespace {

constexpr std::size_t word_bytes = fingerprint_word_bytes;

// Scene: a Slot with a header, tensors and zeros, whose tensors lie on the GPU.
struct Scene {
  Scene(GpuTrainer& trainer_in, std::size_t header_bytes)
      : trainer(trainer_in), slot(random_bytes(header_bytes, 1)), is_on_gpu(header_bytes) {}

  // So far from a multiple of 256.
  void add_tensor(std::size_t bytes, std::size_t from) {
    const auto content = random_bytes(bytes, slot.size() + from);
    std::byte* const memory = trainer.allocate(from + bytes) + from;
    trainer.write(memory, content);
    pieces.push_back({memory, slot.size(), bytes});
    slot.insert(slot.end(), content.begin(), content.end());
    is_on_gpu.resize(slot.size(), true);
  }
  void add_zeros(std::size_t bytes) {
    if (bytes == 0) return;
    pieces.push_back({nullptr, slot.size(), bytes});
    slot.resize(slot.size() + bytes);
    is_on_gpu.resize(slot.size(), false);
  }
  std::span<const std::byte> chunk(std::size_t index, std::size_t chunk_bytes) const {
    const std::size_t begin = index * chunk_bytes;
    return std::span(slot).subspan(begin, std::min(chunk_bytes, slot.size() - begin));
  }
  // The words of a Chunk that have no byte of the GPU's.
  FingerprintSum rest(std::size_t index, std::size_t chunk_bytes) const {
    FingerprintSum sum;
    const auto bytes = chunk(index, chunk_bytes);
    for (std::size_t at = 0; at < bytes.size(); at += word_bytes) {
      const auto word = bytes.subspan(at, std::min(word_bytes, bytes.size() - at));
      const auto first = is_on_gpu.begin() + static_cast<long>(index * chunk_bytes + at);
      if (std::find(first, first + static_cast<long>(word.size()), true) ==
          first + static_cast<long>(word.size()))
        sum.add(word, at);
    }
    return sum;
  }

  GpuTrainer& trainer;
  std::vector<std::byte> slot;
  std::vector<bool> is_on_gpu;
  std::vector<CopyPiece> pieces;
};

void check_fingerprints(const Scene& scene, std::size_t chunk_bytes, unsigned blocks) {
  GpuTrainer& trainer = scene.trainer;
  const auto stream = static_cast<CUstream>(trainer.stream().handle);
  CudaFingerprint kernel(trainer.driver());
  REQUIRE(kernel.load(stream));
  const auto plan = device::plan_fingerprints(scene.pieces, chunk_bytes);
  const std::size_t chunks = div_ceil(scene.slot.size(), chunk_bytes);
  const auto made = FingerprintTable::make(trainer.driver(), plan, {chunk_bytes, chunks});
  REQUIRE(made);
  FingerprintTable& table = **made;
  // The second time it begins anew.
  for (int time = 0; time < 2; ++time) {
    REQUIRE(table.queue(kernel, stream, blocks));
    trainer.synchronize();
    REQUIRE(table.sums().size() == chunks);
    for (std::size_t i = 0; i < chunks; ++i) {
      FingerprintSum sum(table.sums()[i]);
      sum.add(scene.rest(i, chunk_bytes));
      const auto chunk = scene.chunk(i, chunk_bytes);
      INFO("Chunk " << i << " of " << chunks << ", each of " << chunk_bytes << " bytes");
      REQUIRE(sum.finish(chunk.size()) == fingerprint_of(chunk));
    }
  }
}

}  // namespace

TEST_CASE("gpu fingerprints: tensors at any address and of any size", "[gpu]") {
  const auto trainer = open_trainer();
  Scene scene(*trainer, 4096);
  constexpr std::size_t entry = device::fingerprint_entry_bytes;
  for (std::size_t from = 0; from <= 17; ++from) {
    for (const std::size_t bytes : {1, 2, 7, 8, 9, 15, 16, 24, 33, 260, 4096, 8191})
      scene.add_tensor(bytes, from);
    scene.add_zeros(from * 3);
  }
  for (const std::size_t bytes : {entry - 1, entry, entry + 1, 2 * entry + 5, 5 * entry})
    for (const std::size_t from : {0, 2, 8, 13}) scene.add_tensor(bytes, from);
  check_fingerprints(scene, 64 * KiB, CudaFingerprint::blocks_of_a_whole_gpu);
  check_fingerprints(scene, default_chunk_bytes, 1);
}

TEST_CASE("gpu fingerprints: thousands of small tensors, and a large one", "[gpu]") {
  const auto trainer = open_trainer();
  Scene scene(*trainer, 8192);
  scene.add_tensor(9 * MiB + 8, 0);
  Random random(5);
  for (int i = 0; i < 2000; ++i) scene.add_tensor(1 + random.next() % 300, random.next() % 64);
  check_fingerprints(scene, default_chunk_bytes, CudaFingerprint::blocks_of_a_whole_gpu);
}

TEST_CASE("gpu fingerprints: whole Slots of ones, zeros and nothing", "[gpu]") {
  const auto trainer = open_trainer();
  Scene scene(*trainer, 4096);
  check_fingerprints(scene, default_chunk_bytes, 8);
  scene.add_zeros(4096);
  check_fingerprints(scene, default_chunk_bytes, 8);
  std::byte* const memory = trainer->allocate(4 * MiB);
  trainer->fill(memory, 0xffffffff, MiB);
  scene.pieces.push_back({memory, scene.slot.size(), 4 * MiB});
  scene.slot.resize(scene.slot.size() + 4 * MiB, std::byte{0xff});
  scene.is_on_gpu.resize(scene.slot.size(), true);
  check_fingerprints(scene, default_chunk_bytes, 8);
}

}  // namespace ckpt::test
