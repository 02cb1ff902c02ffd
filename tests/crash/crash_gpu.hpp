// CrashGpu: a GPU for the tensors of a crash trainer: the stand-in driver of tests/support.
//
// Its functions are found by name, so that the trainer is built without CUDA's headers.
//
// Threads: one. Lifetime: as long as anything lies on it.
#pragma once

#include <ckpt/tensor.hpp>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace ckpt::test {
struct StandInControl;
}  // namespace ckpt::test

namespace crash {

class Gpu {
 public:
  // Null: CKPT_CUDA_DRIVER names no stand-in.
  static std::unique_ptr<Gpu> open();

  ckpt::Stream stream() const { return {stream_}; }
  void* allocate(std::size_t bytes) const;
  // As a kernel does: in the order of the stream. False: the GPU is lost.
  bool write(void* target, std::span<const std::byte> bytes) const;
  // After all that is queued.
  void read(std::span<std::byte> target, const void* source) const;
  // Calls that a real driver leaves undefined; empty: none.
  std::string violations() const;

 private:
  explicit Gpu(const ckpt::test::StandInControl& control) : control_(control) {}
  bool make_stream();

  const ckpt::test::StandInControl& control_;
  void* stream_ = nullptr;
};

}  // namespace crash
