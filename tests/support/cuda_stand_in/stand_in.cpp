#include "support/cuda_stand_in/stand_in.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

#include "base/assert.hpp"

namespace ckpt::test {

struct StandInTrainer::Write {
  std::uint64_t target;
  std::vector<std::byte> bytes;
};

namespace {

std::uint64_t number_of(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

const StandInControl& stand_in() {
  static const StandInControl* const control = [] {
    ::setenv("CKPT_CUDA_DRIVER", CKPT_CUDA_STAND_IN_LIBRARY, 1);
    void* library = ::dlopen(CKPT_CUDA_STAND_IN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    CKPT_ASSERT(library != nullptr);
    void* found = ::dlsym(library, "cuda_stand_in");
    CKPT_ASSERT(found != nullptr);
    return static_cast<const StandInControl*>(found);
  }();
  return *control;
}

StandInTrainer::StandInTrainer(const std::string& words, int device) : device_(device) {
  CKPT_ASSERT(stand_in().reset(words.c_str()));
  auto driver = device::CudaDriver::open();
  CKPT_ASSERT(driver.has_value());
  driver_ = std::move(*driver);
  CKPT_ASSERT(driver_->retain_context(&context_, device_) == CUDA_SUCCESS);
  CKPT_ASSERT(driver_->push_context(context_) == CUDA_SUCCESS);
  CKPT_ASSERT(driver_->create_stream(&stream_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
}

StandInTrainer::~StandInTrainer() {
  stand_in().run_all();
  for (const CUdeviceptr address : memory_) (void)driver_->free(address);
  (void)driver_->destroy_stream(stream_);
  CUcontext ours = nullptr;
  (void)driver_->pop_context(&ours);
  (void)driver_->release_context(device_);
  for (const CUdevice other : others_) (void)driver_->release_context(other);
}

std::byte* StandInTrainer::allocate(std::size_t bytes) {
  CUdeviceptr address = 0;
  CKPT_ASSERT(driver_->allocate(&address, bytes) == CUDA_SUCCESS);
  memory_.push_back(address);
  return reinterpret_cast<std::byte*>(address);
}

std::byte* StandInTrainer::allocate_on(int device, std::size_t bytes) {
  CUcontext context = nullptr;
  CKPT_ASSERT(driver_->retain_context(&context, device) == CUDA_SUCCESS);
  others_.push_back(device);
  const device::CudaScope scope(*driver_, context);
  return allocate(bytes);
}

void StandInTrainer::run_write(void* argument) {
  auto& write = *static_cast<Write*>(argument);
  stand_in().poke(write.target, write.bytes.data(), write.bytes.size());
  write.bytes = {};
}

void StandInTrainer::write(std::byte* target, std::vector<std::byte> bytes) {
  // Kept, since of a context that is lost it never runs.
  writes_.push_back(std::make_unique<Write>(Write{number_of(target), std::move(bytes)}));
  // A context that was lost takes nothing more: then the update does not happen either.
  (void)stand_in().launch(stream_, run_write, writes_.back().get());
}

std::vector<std::byte> StandInTrainer::read(const std::byte* source, std::size_t bytes) {
  stand_in().run_all();
  std::vector<std::byte> out(bytes);
  stand_in().peek(number_of(source), out.data(), bytes);
  return out;
}

void StandInTrainer::synchronize() const {
  stand_in().run_all();
}

}  // namespace ckpt::test
