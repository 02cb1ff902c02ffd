// GpuParts: the parts of the GPU bench, each of which can be run alone, and what they share.
//
// Each part is a process of its own in a bundle's gpu.sh: one that hangs takes no other along.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "bench/gpu_state.hpp"
#include "bench/harness.hpp"
#include "bench/must.hpp"
#include "gpu/gpu_trainer.hpp"

namespace bench {

void measure_memory(Harness& harness, ckpt::test::GpuTrainer& trainer);       // G8, G13
void measure_fingerprint(Harness& harness, ckpt::test::GpuTrainer& trainer);  // G11
void measure_copies(Harness& harness, ckpt::test::GpuTrainer& trainer);       // G1 to G3, G10
void measure_calls(Harness& harness, ckpt::test::GpuTrainer& trainer);        // G4, G4b, G6
void measure_saves(Harness& harness, ckpt::test::GpuTrainer& trainer);    // G4 by a Checkpointer
void measure_gaps(Harness& harness, ckpt::test::GpuTrainer& trainer);     // G6 for each gap
void measure_steps(Harness& harness, ckpt::test::GpuTrainer& trainer);    // G5, G5b
void measure_overlap(Harness& harness, ckpt::test::GpuTrainer& trainer);  // The same, each gap
void measure_restore(Harness& harness, ckpt::test::GpuTrainer& trainer);  // G9
void measure_nccl(Harness& harness, ckpt::test::GpuTrainer& trainer);     // G15
void measure_collectives(Harness& harness, ckpt::test::GpuTrainer& trainer);  // G14
void measure_training(Harness& harness, ckpt::test::GpuTrainer& trainer);     // G12
void measure_unchanged(Harness& harness, ckpt::test::GpuTrainer& trainer);    // B33g

inline double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

inline CUdeviceptr on_gpu(const std::byte* address) {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(address));
}

inline void check(CUresult result) {
  if (result != CUDA_SUCCESS) give_up(fmt::format("CUDA error {}", static_cast<int>(result)));
}

inline CUstream stream_of(const ckpt::test::GpuTrainer& trainer) {
  return static_cast<CUstream>(trainer.stream().handle);
}

// Like a transformer: norms, biases, projections, and now and then an embedding.
std::vector<std::size_t> sizes_like_a_model(std::size_t bytes);
// The same bytes in so many tensors: many small ones, and the rest in a few large ones.
std::vector<std::size_t> sizes_of_many(std::size_t bytes, std::size_t count);

// 30 GB, the size that the bars name: thirty times the requested size, if there is room on the GPU
// and, for the Slot, on the host beside everything else.
std::size_t large_bytes(const Harness& harness, const ckpt::test::GpuTrainer& trainer);

inline constexpr std::pair<ckpt::GpuGap, const char*> gaps[] = {
    {ckpt::GpuGap::none, "none"},
    {ckpt::GpuGap::memset, "memset"},
    {ckpt::GpuGap::write_value, "write_value"},
    {ckpt::GpuGap::copy, "copy"},
};
// Otherwise libckpt would take another one in its place; says so.
bool has_gap(ckpt::test::GpuTrainer& trainer, ckpt::GpuGap gap);

// SmallCopies: 4 bytes to the host, one after the other, as a trainer copies its loss.
class SmallCopies {
 public:
  SmallCopies(ckpt::test::GpuTrainer& trainer, ckpt::device::MemoryPins& pins, CUstream stream)
      : trainer_(trainer),
        stream_(stream),
        word_(pins, ckpt::page_bytes),
        source_(trainer.allocate(sizeof(std::uint32_t))) {}
  ~SmallCopies() { trainer_.free(source_); }
  SmallCopies(const SmallCopies&) = delete;
  SmallCopies& operator=(const SmallCopies&) = delete;

  // Until the capture under way ends; adds the milliseconds of each.
  void copy_during(const GpuState& state, std::vector<double>& times_ms) {
    while (state.snapshotter->is_running()) {
      const auto asked_at = std::chrono::steady_clock::now();
      check(trainer_.driver().copy_to_host(word_.bytes().data(), on_gpu(source_), 4, stream_));
      trainer_.spin(stream_);
      times_ms.push_back(milliseconds_since(asked_at));
    }
  }

 private:
  ckpt::test::GpuTrainer& trainer_;
  const CUstream stream_;
  PinnedMemory word_;
  std::byte* const source_;
};

// Raw: the link itself, from one buffer on the GPU to pinned memory and back.
class Raw {
 public:
  Raw(ckpt::test::GpuTrainer& trainer, std::size_t bytes)
      : trainer_(trainer), gpu_(trainer.allocate(bytes)), bytes_(bytes) {
    ckpt::device::GpuOptions options;
    options.pin_piece_bytes = bytes;  // No copy may cross two registrations.
    gpus_ = must(ckpt::device::Gpus::open(options, pins_));
    (void)must(gpus_->device_of(gpu_, 0));
    host_.emplace(*pins_, bytes);
    trainer_.fill(gpu_, 1, bytes / sizeof(std::uint32_t));
    trainer_.synchronize();
  }
  ~Raw() {
    host_.reset();
    pins_->stop();
    trainer_.free(gpu_);
  }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;

  double to_host() {
    return rate(static_cast<double>(bytes_), [&] {
      check(trainer_.driver().copy_to_host(host_->bytes().data(), on_gpu(gpu_), bytes_, stream()));
      trainer_.spin();
    });
  }
  double to_device() {
    return rate(static_cast<double>(bytes_), [&] {
      check(
          trainer_.driver().copy_to_device(on_gpu(gpu_), host_->bytes().data(), bytes_, stream()));
      trainer_.spin();
    });
  }
  CUstream stream() const { return stream_of(trainer_); }

 private:
  ckpt::test::GpuTrainer& trainer_;
  std::byte* gpu_;
  std::size_t bytes_;
  std::shared_ptr<ckpt::device::MemoryPins> pins_ = std::make_shared<ckpt::device::MemoryPins>();
  std::unique_ptr<ckpt::device::Gpus> gpus_;
  std::optional<PinnedMemory> host_;
};

}  // namespace bench
