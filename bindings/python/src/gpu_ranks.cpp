#include "gpu_ranks.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "failure.hpp"

namespace nb = nanobind;

namespace ckpt::python {

namespace {

std::chrono::milliseconds timeout_of(double seconds) {
  constexpr double longest = 24.0 * 3600;
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(std::clamp(seconds, 0.0, longest) * 1000));
}

GpuRanks open(int gpu, const std::string& library, double patience) {
  const nb::gil_scoped_release release;
  return take(GpuRanks::open({gpu, library, timeout_of(patience)}));
}

}  // namespace

PythonGpuRanks::PythonGpuRanks(int gpu, const std::string& library, double patience)
    : ranks_(open(gpu, library, patience)) {}

nb::bytes PythonGpuRanks::make_id(double seconds) {
  const GpuRanks::Id id = [&] {
    const nb::gil_scoped_release release;
    return take(ranks_.make_id(timeout_of(seconds)));
  }();
  return nb::bytes(reinterpret_cast<const char*>(id.data()), id.size());
}

void PythonGpuRanks::join(std::uint32_t rank, std::uint32_t ranks, const nb::bytes& id,
                          double seconds) {
  GpuRanks::Place place{rank, ranks, {}, timeout_of(seconds)};
  if (id.size() != place.id.size())
    throw Failure(Errc::invalid_argument, "join: an id has 128 bytes");
  std::memcpy(place.id.data(), id.c_str(), place.id.size());
  const nb::gil_scoped_release release;
  check(ranks_.join(place));
}

void PythonGpuRanks::broadcast(std::uint32_t root, const Parts& parts, std::uint64_t stream,
                               double seconds) {
  GpuBroadcast asked;
  asked.root = root;
  for (const auto& [address, bytes] : parts)
    asked.parts.push_back({reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), bytes});
  asked.after = Stream{reinterpret_cast<void*>(static_cast<std::uintptr_t>(stream))};
  asked.timeout = timeout_of(seconds);
  const nb::gil_scoped_release release;
  check(ranks_.broadcast(asked));
}

void PythonGpuRanks::close(double seconds) {
  const nb::gil_scoped_release release;
  check(ranks_.close(timeout_of(seconds)));
}

}  // namespace ckpt::python
