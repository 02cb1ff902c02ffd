#include "crash_gpu.hpp"

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "support/cuda_stand_in/control.hpp"

namespace crash {

namespace {

struct Write {
  const ckpt::test::StandInControl& control;
  std::uint64_t target;
  std::vector<std::byte> bytes;
};

void run_write(void* argument) {
  const std::unique_ptr<Write> write(static_cast<Write*>(argument));
  write->control.poke(write->target, write->bytes.data(), write->bytes.size());
}

template <class Function>
Function* find(const ckpt::test::StandInControl& control, const char* name, int version) {
  return reinterpret_cast<Function*>(control.find(name, version));
}

std::uint64_t number_of(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

std::unique_ptr<Gpu> Gpu::open() {
  const char* path = std::getenv("CKPT_CUDA_DRIVER");
  void* library = path != nullptr ? ::dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  void* control = library != nullptr ? ::dlsym(library, "cuda_stand_in") : nullptr;
  if (control == nullptr) return nullptr;
  std::unique_ptr<Gpu> gpu(new Gpu(*static_cast<const ckpt::test::StandInControl*>(control)));
  if (!gpu->make_stream()) return nullptr;
  return gpu;
}

// As a framework does with its first tensor: the primary context, and a stream of its own.
bool Gpu::make_stream() {
  constexpr unsigned int non_blocking = 1;
  void* context = nullptr;
  auto* retain = find<int(void**, int)>(control_, "cuDevicePrimaryCtxRetain", 7000);
  auto* push = find<int(void*)>(control_, "cuCtxPushCurrent", 4000);
  auto* create = find<int(void**, unsigned int)>(control_, "cuStreamCreate", 2000);
  return retain(&context, 0) == 0 && push(context) == 0 && create(&stream_, non_blocking) == 0;
}

void* Gpu::allocate(std::size_t bytes) const {
  auto* allocate = find<int(std::uint64_t*, std::size_t)>(control_, "cuMemAlloc", 3020);
  std::uint64_t address = 0;
  if (allocate(&address, bytes) != 0) return nullptr;
  return reinterpret_cast<void*>(address);
}

bool Gpu::write(void* target, std::span<const std::byte> bytes) const {
  auto write = std::make_unique<Write>(
      Write{control_, number_of(target), std::vector(bytes.begin(), bytes.end())});
  if (control_.launch(stream_, run_write, write.get()) != 0) return false;
  (void)write.release();
  return true;
}

std::string Gpu::violations() const {
  return control_.violations();
}

void Gpu::read(std::span<std::byte> target, const void* source) const {
  control_.run_all();
  control_.peek(number_of(source), target.data(), target.size());
}

}  // namespace crash
