#include "bench/gpu_gemm.hpp"

#include <fmt/format.h>

#include <chrono>

#include "base/units.hpp"
#include "bench/must.hpp"
#ifdef CKPT_BENCH_GEMM
#include "gpu_gemm_binary.h"
#else
static const unsigned char gpu_gemm_binary[1] = {0};
#endif

namespace bench {

namespace {

using ckpt::MiB;

constexpr int n = 4096;  // 0.14 TFLOP for one product.
constexpr int tile = 128;
constexpr unsigned threads = 256;
constexpr std::size_t half_bytes = 2;
constexpr std::size_t fill_words = 64 * MiB / sizeof(std::uint32_t);
constexpr std::uint32_t two_halves = 0x2e662e66;  // 0.1 and 0.1.
constexpr int warm_up = 20;

CUdeviceptr on_gpu(const std::byte* address) {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(address));
}

}  // namespace

GpuGemm::GpuGemm(ckpt::test::GpuTrainer& trainer) : trainer_(trainer) {
  const ckpt::Status loaded = load();
  kind_ = loaded ? fmt::format("the computation is matrix products of {0} x {0} halves", n)
                 : fmt::format("the computation is work of the memory (no matrix products: {})",
                               loaded.error().text());
  if (!loaded) function_ = stay_ = nullptr;
  const std::size_t elements = std::size_t{n} * n;
  out_ = trainer_.allocate(std::max(elements * sizeof(float), fill_words * sizeof(std::uint32_t)));
  if (function_ == nullptr) return;
  left_ = trainer_.allocate(elements * half_bytes);
  right_ = trainer_.allocate(elements * half_bytes);
  for (std::byte* matrix : {left_, right_}) trainer_.fill(matrix, two_halves, elements / 2);
}

ckpt::Status GpuGemm::load() {
#ifndef CKPT_BENCH_GEMM
  return ckpt::fail(ckpt::Errc::unsupported, "built without nvcc");
#endif
  const auto load_module = trainer_.find<PFN_cuModuleLoadData_v2000>("cuModuleLoadData", 2000);
  const auto find_function =
      trainer_.find<PFN_cuModuleGetFunction_v2000>("cuModuleGetFunction", 2000);
  launch_ = trainer_.find<PFN_cuLaunchKernel_v4000>("cuLaunchKernel", 4000);
  if (load_module == nullptr || find_function == nullptr || launch_ == nullptr)
    return ckpt::fail(ckpt::Errc::unsupported, "the driver runs none");
  const auto& driver = trainer_.driver();
  CUmodule module = nullptr;
  CKPT_CHECK(driver.check(load_module(&module, gpu_gemm_binary), "load the matrix product"));
  CKPT_CHECK(driver.check(find_function(&stay_, module, "stay"), "find the kernel that stays"));
  return driver.check(find_function(&function_, module, "gemm"), "find the matrix product");
}

void GpuGemm::compute(int times) {
  for (int i = 0; i < times; ++i) {
    if (function_ == nullptr) {
      trainer_.fill(out_, static_cast<std::uint32_t>(i), fill_words);
      continue;
    }
    CUdeviceptr left = on_gpu(left_);
    CUdeviceptr right = on_gpu(right_);
    CUdeviceptr out = on_gpu(out_);
    int size = n;
    void* arguments[] = {&left, &right, &out, &size};
    const auto stream = static_cast<CUstream>(trainer_.stream().handle);
    must(trainer_.driver().check(
        launch_(function_, n / tile, n / tile, 1, threads, 1, 1, 0, stream, arguments, nullptr),
        "queue a matrix product"));
  }
}

void GpuGemm::stay(CUstream stream, std::chrono::milliseconds time) {
  constexpr unsigned blocks = 8;  // As many as a collective takes.
  const auto& driver = trainer_.driver();
  if (stay_ == nullptr) {
    const auto fills = static_cast<int>(static_cast<double>(time.count()) / fill_ms_) + 1;
    for (int i = 0; i < fills; ++i)
      must(driver.check(driver.set_words(on_gpu(out_), 1, fill_words, stream), "queue work"));
    return;
  }
  unsigned long long nanoseconds = static_cast<unsigned long long>(time.count()) * 1'000'000;
  void* arguments[] = {&nanoseconds};
  must(driver.check(launch_(stay_, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr),
                    "queue a kernel that stays"));
}

double GpuGemm::milliseconds() {
  compute(warm_up);
  trainer_.spin();
  const auto began_at = std::chrono::steady_clock::now();
  compute(warm_up);
  trainer_.spin();
  const std::chrono::duration<double, std::milli> took =
      std::chrono::steady_clock::now() - began_at;
  if (function_ == nullptr) fill_ms_ = took.count() / warm_up;
  return took.count() / warm_up;
}

}  // namespace bench
