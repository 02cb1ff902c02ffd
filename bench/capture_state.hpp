// CaptureState: a model's tensors with a Slot, for the benchmarks of capture and restore.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/units.hpp"
#include "device/host_device.hpp"
#include "format/safetensors_header.hpp"
#include "snapshot/restorer.hpp"
#include "snapshot/snapshotter.hpp"

namespace bench {

inline constexpr std::uint32_t copy_threads = 2;

// `bytes` of guarded tensors of `tensor_bytes` each, all memory touched.
class CaptureState final : private ckpt::snapshot::CaptureListener {
 public:
  CaptureState(std::size_t bytes, std::size_t tensor_bytes) {
    namespace format = ckpt::format;
    namespace snapshot = ckpt::snapshot;
    std::vector<format::TensorSpec> specs;
    for (std::size_t i = 0; i * tensor_bytes < bytes; ++i) {
      format::TensorSpec spec;
      spec.name = "tensor." + std::to_string(i);
      spec.shape = {static_cast<std::int64_t>(tensor_bytes)};
      specs.push_back(std::move(spec));
    }
    layout = format::make_layout(specs, 0, 0).value();
    memory.assign(specs.size() * tensor_bytes, std::byte{0x5a});
    slot.assign(layout.slot_bytes, std::byte{0x11});
    std::vector<snapshot::Source> sources;
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
      std::byte* data = memory.data() + i * tensor_bytes;
      const auto& place = layout.tensors[i];
      sources.push_back({data, 0, true});
      targets.push_back({place.name, place.dtype, place.shape, data, 0});
    }
    format::HeaderFacts facts;
    facts.job = "bench";
    facts.run = ckpt::to_hex(ckpt::Digest{});
    auto header = format::render_header(layout, facts).value();
    CaptureListener& listener = *this;
    snapshotter = std::make_unique<snapshot::Snapshotter>(
        snapshot::Snapshotter::Plan{layout, sources, std::move(header), devices,
                                    ckpt::default_chunk_bytes},
        listener);
  }

  // One whole capture: the call, the guard, the end. Returns false if it failed.
  bool capture(std::uint64_t step, bool with_checksums) {
    ckpt::snapshot::CaptureRequest request;
    request.step = ckpt::Step{step};
    request.slot = slot;
    request.with_checksums = with_checksums;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    return snapshotter->begin(request) && snapshotter->guard({}) &&
           snapshotter->wait_idle(deadline) && is_good;
  }

  ckpt::format::Layout layout;
  std::vector<std::byte> memory;
  std::vector<std::byte> slot;
  std::vector<ckpt::snapshot::Target> targets;
  ckpt::format::ShardRecord record;  // From the newest capture with checksums.
  // The calling thread takes part, so that both sides use as many threads.
  ckpt::device::CopyThreads threads{copy_threads - 1};
  ckpt::device::HostDevice host{threads};
  std::vector<ckpt::device::Device*> devices{&host};
  bool is_good = false;
  std::unique_ptr<ckpt::snapshot::Snapshotter> snapshotter;

 private:
  void capture_ended(const ckpt::snapshot::Captured& captured) override {
    is_good = captured.status.has_value();
    record.job = "bench";
    record.id.at.step = captured.step;
    record.layout = layout;
    record.bytes = captured.bytes;
    record.chunk_bytes = ckpt::default_chunk_bytes;
    record.chunk_crcs.assign(captured.chunk_crcs.begin(), captured.chunk_crcs.end());
  }
};

// The reference: the same bytes, by as many threads, each in one call.
inline void copy_in_threads(std::byte* target, const std::byte* source, std::size_t bytes) {
  std::vector<std::thread> workers;
  const std::size_t share = bytes / copy_threads;
  for (std::size_t at = 0; at < share * copy_threads; at += share)
    workers.emplace_back([=] { std::copy_n(source + at, share, target + at); });
  for (std::thread& worker : workers) worker.join();
}

}  // namespace bench
