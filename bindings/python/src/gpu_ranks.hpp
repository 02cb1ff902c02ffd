// PythonGpuRanks: ckpt::GpuRanks for Python: addresses and sizes go down, seconds and bytes too.
//
// Threads:   one at a time. The GIL is not held while a call waits.
// Lifetime:  as GpuRanks: the caller keeps the memory of a broadcast.
#pragma once

#include <nanobind/nanobind.h>

#include <ckpt/gpu_ranks.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ckpt::python {

class PythonGpuRanks {
 public:
  PythonGpuRanks(int gpu, const std::string& library, double patience);

  nanobind::bytes make_id(double seconds);
  void join(std::uint32_t rank, std::uint32_t ranks, const nanobind::bytes& id, double seconds);
  // The parts are (address, bytes).
  using Parts = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  void broadcast(std::uint32_t root, const Parts& parts, std::uint64_t stream, double seconds);
  void close(double seconds);
  bool is_quiet() const { return ranks_.is_quiet(); }
  std::string library_name() const { return ranks_.library_name(); }

 private:
  GpuRanks ranks_;
};

}  // namespace ckpt::python
