// GpuState: tensors on a GPU, a pinned Slot, and a Snapshotter between them, for the GPU benches.
#pragma once

#include <algorithm>
#include <ckpt/options.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/units.hpp"
#include "bench/must.hpp"
#include "device/copy_threads.hpp"
#include "device/gpus.hpp"
#include "device/host_device.hpp"
#include "format/safetensors_header.hpp"
#include "gpu/gpu_trainer.hpp"
#include "os/mapped_segments.hpp"
#include "snapshot/restorer.hpp"
#include "snapshot/snapshotter.hpp"

namespace bench {

// PinnedMemory: like the daemon's Slots, a memfd that is touched, mapped, and registered with the
// driver.
class PinnedMemory {
 public:
  PinnedMemory(ckpt::device::MemoryPins& pins, std::uint64_t bytes, bool has_huge_pages = true) {
    const std::uint64_t whole = ckpt::align_up(bytes, ckpt::page_bytes);
    auto segments = must(ckpt::os::create_segments({"bench", whole}));
    memory_ = std::make_shared<ckpt::os::MappedSegments>(
        must(ckpt::os::MappedSegments::map(std::move(segments), {true, false, has_huge_pages})));
    // As in the daemon: the kernel does it, on cores that nobody uses yet.
    must(memory_->prefault(
        static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 2u, 8u))));
    const auto began_at = std::chrono::steady_clock::now();
    pin_ = pins.hold(memory_->bytes(), memory_);
    must(pins.wait_settled(began_at + std::chrono::minutes(5)));
    took = std::chrono::steady_clock::now() - began_at;
  }
  std::span<std::byte> bytes() const { return memory_->bytes(); }

  std::chrono::duration<double> took{0};  // The registration.

 private:
  std::shared_ptr<ckpt::os::MappedSegments> memory_;
  std::shared_ptr<const void> pin_;
};

// The gap is measured at each use: without a cache, every bench finds its own.
inline ckpt::device::GpuOptions as_in_a_trainer() {
  ckpt::device::GpuOptions options;
  options.gap = ckpt::Options{}.gpu_gap;
  options.gather = ckpt::Options{}.gpu_gather;
  return options;
}

class GpuState final : private ckpt::snapshot::CaptureListener {
 public:
  // Guarded tensors of these sizes.
  GpuState(ckpt::test::GpuTrainer& trainer, const std::vector<std::size_t>& sizes,
           const ckpt::device::GpuOptions& options = as_in_a_trainer())
      : trainer_(trainer),
        pins_(std::make_shared<ckpt::device::MemoryPins>()),
        gpus_(must(ckpt::device::Gpus::open(options, pins_))) {
    namespace format = ckpt::format;
    std::vector<format::TensorSpec> specs;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      format::TensorSpec spec;
      spec.name = "tensor." + std::to_string(i);
      spec.shape = {static_cast<std::int64_t>(sizes[i])};
      specs.push_back(std::move(spec));
    }
    layout = must(format::make_layout(specs, 0, 0));
    std::vector<ckpt::snapshot::Source> sources;
    for (const auto& place : layout.tensors) {
      std::byte* const data = trainer_.allocate(place.extent.bytes);
      trainer_.fill(data, 0x5a5a5a5a, place.extent.bytes / sizeof(std::uint32_t));
      bytes += place.extent.bytes;
      places.push_back(data);
      sources.push_back({data, 1, true});
      targets.push_back({place.name, place.dtype, place.shape, data, 1});
    }
    trainer_.synchronize();
    devices = {&host_, must(gpus_->device_of(places.front(), 0))};
    slot = std::make_unique<PinnedMemory>(*pins_, layout.slot_bytes);
    format::HeaderFacts facts;
    facts.job = "bench";
    facts.run = ckpt::to_hex(ckpt::Digest{});
    CaptureListener& listener = *this;
    snapshotter = std::make_unique<ckpt::snapshot::Snapshotter>(
        ckpt::snapshot::Snapshotter::Plan{layout, sources,
                                          must(format::render_header(layout, facts)), devices,
                                          ckpt::default_chunk_bytes},
        listener);
  }
  ~GpuState() override {
    snapshotter.reset();
    slot.reset();
    pins_->stop();
    for (std::byte* place : places) trainer_.free(place);
  }

  void begin() {
    ckpt::snapshot::CaptureRequest request;
    request.step = ckpt::Step{++step_};
    request.slot = slot->bytes();
    request.stream = trainer_.stream();
    must(snapshotter->begin(request));
  }
  void end() {
    must(snapshotter->guard(trainer_.stream()));
    must(snapshotter->wait_idle(std::chrono::steady_clock::now() + std::chrono::minutes(1)));
    must(std::move(status_));
  }
  // The next work on the trainer's stream waits for the copies, on the GPU.
  void guard() { must(snapshotter->guard(trainer_.stream())); }
  // The engine's work as batches arrive.
  ckpt::format::ShardRecord record() const {
    ckpt::format::ShardRecord made;
    made.job = "bench";
    made.layout = layout;
    made.bytes = layout.slot_bytes;
    made.chunk_bytes = ckpt::default_chunk_bytes;
    for (std::uint64_t at = 0; at < made.bytes; at += made.chunk_bytes)
      made.chunk_crcs.push_back(ckpt::crc32(
          slot->bytes().subspan(at, std::min<std::uint64_t>(made.chunk_bytes, made.bytes - at))));
    return made;
  }
  ckpt::device::MemoryPins& pins() { return *pins_; }
  ckpt::device::CopyThreads& threads() { return threads_; }

  ckpt::format::Layout layout;
  std::uint64_t bytes = 0;
  std::vector<std::byte*> places;
  std::vector<ckpt::snapshot::Target> targets;
  std::vector<ckpt::device::Device*> devices;
  std::unique_ptr<PinnedMemory> slot;
  std::unique_ptr<ckpt::snapshot::Snapshotter> snapshotter;

 private:
  void capture_ended(const ckpt::snapshot::Captured& captured) override {
    status_ = captured.status;
  }

  ckpt::test::GpuTrainer& trainer_;
  std::shared_ptr<ckpt::device::MemoryPins> pins_;
  std::unique_ptr<ckpt::device::Gpus> gpus_;
  ckpt::device::CopyThreads threads_{ckpt::Options{}.copy_threads};  // As a trainer has them.
  ckpt::device::HostDevice host_{threads_};
  std::uint64_t step_ = 0;
  ckpt::Status status_;
};

}  // namespace bench
