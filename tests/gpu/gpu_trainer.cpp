#include "gpu/gpu_trainer.hpp"

#include <array>
#include <cstdlib>
#include <utility>

#include "base/assert.hpp"

namespace ckpt::test {

Result<std::unique_ptr<GpuTrainer>> GpuTrainer::open() {
  CKPT_TRY(auto driver, device::CudaDriver::open());
  std::unique_ptr<GpuTrainer> trainer(new GpuTrainer(std::move(driver)));
  CKPT_CHECK(trainer->start());
  return trainer;
}

Status GpuTrainer::start() {
  CKPT_CHECK(driver_->check(driver_->retain_context(&context_, 0), "open the context of GPU 0"));
  CKPT_CHECK(driver_->check(driver_->push_context(context_), "make it current"));
  return driver_->check(driver_->create_stream(&stream_, CU_STREAM_NON_BLOCKING),
                        "create a stream");
}

std::string GpuTrainer::name() const {
  std::array<char, 256> text{};
  CUdevice gpu = 0;
  const bool is_known =
      driver_->get_device(&gpu, 0) == CUDA_SUCCESS &&
      driver_->device_name(text.data(), static_cast<int>(text.size()) - 1, gpu) == CUDA_SUCCESS;
  return is_known ? text.data() : "a GPU without a name";
}

void* GpuTrainer::address_of(const char* name, int version) const {
  const char* const named = std::getenv("CKPT_CUDA_DRIVER");
  const bool is_named = named != nullptr && *named != '\0';
  const auto library = os::DynamicLibrary::open({is_named ? named : "libcuda.so.1"});
  if (!library) return nullptr;
  using Get = std::remove_pointer_t<PFN_cuGetProcAddress_v12000>;
  const auto get = library->symbol<Get>("cuGetProcAddress_v2");
  if (!get) return nullptr;
  void* address = nullptr;
  CUdriverProcAddressQueryResult found{};
  const auto result = (*get)(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, &found);
  return result == CUDA_SUCCESS ? address : nullptr;
}

GpuTrainer::~GpuTrainer() {
  if (stream_ != nullptr) {
    synchronize();
    for (const CUdeviceptr address : memory_) (void)driver_->free(address);
    (void)driver_->destroy_stream(stream_);
  }
  CUcontext ours = nullptr;
  (void)driver_->pop_context(&ours);
  (void)driver_->release_context(0);
}

std::byte* GpuTrainer::allocate(std::size_t bytes) {
  CUdeviceptr address = 0;
  CKPT_ASSERT(driver_->allocate(&address, bytes) == CUDA_SUCCESS);
  memory_.push_back(address);
  return reinterpret_cast<std::byte*>(address);
}

void GpuTrainer::free(std::byte* memory) {
  CKPT_ASSERT(std::erase(memory_, on_gpu(memory)) == 1);
  CKPT_ASSERT(driver_->free(on_gpu(memory)) == CUDA_SUCCESS);
}

void GpuTrainer::fill(std::byte* target, std::uint32_t word, std::size_t words) {
  CKPT_ASSERT(driver_->set_words(on_gpu(target), word, words, stream_) == CUDA_SUCCESS);
}

void GpuTrainer::write(std::byte* target, std::vector<std::byte> bytes) {
  in_flight_.push_back(std::move(bytes));
  const auto& kept = in_flight_.back();
  CKPT_ASSERT(driver_->copy_to_device(on_gpu(target), kept.data(), kept.size(), stream_) ==
              CUDA_SUCCESS);
}

std::vector<std::byte> GpuTrainer::read(const std::byte* source, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  CKPT_ASSERT(driver_->copy_to_host(out.data(), on_gpu(source), bytes, stream_) == CUDA_SUCCESS);
  synchronize();
  return out;
}

void GpuTrainer::synchronize() {
  CKPT_ASSERT(driver_->synchronize_context() == CUDA_SUCCESS);
  in_flight_.clear();
}

void GpuTrainer::spin(CUstream stream) {
  CUresult result = CUDA_ERROR_NOT_READY;
  while (result == CUDA_ERROR_NOT_READY) result = driver_->query_stream(stream);
  CKPT_ASSERT(result == CUDA_SUCCESS);
}

std::size_t GpuTrainer::bytes_used() const {
  std::size_t free = 0;
  std::size_t total = 0;
  CKPT_ASSERT(driver_->memory_info(&free, &total) == CUDA_SUCCESS);
  return total - free;
}

std::size_t GpuTrainer::bytes_free() const {
  std::size_t free = 0;
  std::size_t total = 0;
  CKPT_ASSERT(driver_->memory_info(&free, &total) == CUDA_SUCCESS);
  return free;
}

}  // namespace ckpt::test
