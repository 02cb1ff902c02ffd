// Goal:   each thing that libckpt takes for granted of the driver gets an answer on the first run
// on
//         a real GPU: whichever does not hold fails by name.
// Method: small programs of the driver's own functions, and captures of memory of every kind that a
//         framework allocates. Choices that a driver is free in are printed and not judged.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <vector>

#include "device/cuda_batches.hpp"
#include "device/cuda_context_identity.hpp"
#include "device/gpus.hpp"
#include "gpu/gpu_here.hpp"
#include "os/mapped_segments.hpp"

namespace ckpt::test {

namespace {

constexpr std::size_t piece = 2 * MiB;  // Drivers round large allocations to it.
constexpr unsigned int portable = CU_MEMHOSTREGISTER_PORTABLE;

device::Deadline gpu_deadline() {
  return std::chrono::steady_clock::now() + gpu_patience;
}
std::byte* at(CUdeviceptr address) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

// As the daemon's segments are: shared pages of a memfd, touched.
std::shared_ptr<os::MappedSegments> shared_pages(std::size_t bytes) {
  auto segments = os::create_segments({"gpu-suite", bytes}).value();
  auto mapped = os::MappedSegments::map(std::move(segments), {true, false, true}).value();
  REQUIRE(mapped.prefault(2));
  return std::make_shared<os::MappedSegments>(std::move(mapped));
}

bool holds(std::span<const std::byte> bytes, std::uint32_t word) {
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(word))
    if (std::memcmp(bytes.data() + i, &word, sizeof(word)) != 0) return false;
  return true;
}

// A Slot in shared pages, and captures of `parts` into it, one behind the other.
class Captures final : device::CopyListener {
 public:
  Captures(const std::vector<std::byte*>& parts, int gpu) : bytes_(parts.size() * piece) {
    gpus_ = device::Gpus::open({}, pins_).value();
    device_ = gpus_->device_of(parts.front(), gpu).value();
    device::CopyList list;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      list.strips.push_back({i * piece, piece, i, 1});
      list.pieces.push_back({parts[i], i * piece, piece});
    }
    run_ = device_->make_run(std::move(list), *this);
    memory_ = shared_pages(bytes_);
    pin_ = pins_->hold(memory_->bytes(), memory_);
    REQUIRE(pins_->wait_settled(gpu_deadline()));
    REQUIRE(pins_->is_pinned(memory_->bytes()));
  }
  ~Captures() override {
    run_.reset();
    pins_->stop();
  }
  void start(Stream stream) { REQUIRE(run_->start({memory_->bytes(), stream, false})); }
  void fence(Stream stream) { REQUIRE(run_->fence(stream)); }
  std::span<const std::byte> end() {
    REQUIRE(run_->wait_idle(gpu_deadline()));
    INFO((ended_ ? "" : ended_.error().message()));
    REQUIRE(ended_);
    return memory_->bytes().first(bytes_);
  }

 private:
  void run_ended(Status status) override { ended_ = std::move(status); }

  const std::size_t bytes_;
  std::shared_ptr<device::MemoryPins> pins_ = std::make_shared<device::MemoryPins>();
  std::unique_ptr<device::Gpus> gpus_;
  device::Device* device_ = nullptr;
  std::unique_ptr<device::CopyRun> run_;
  std::shared_ptr<os::MappedSegments> memory_;
  std::shared_ptr<const void> pin_;
  Status ended_;
};

}  // namespace

TEST_CASE("gpu driver: shared pages of a memfd are registered, copied to, and let go", "[gpu]") {
  const auto trainer = open_trainer();
  const auto& driver = trainer->driver();
  const auto memory = shared_pages(2 * piece);
  std::byte* const first = memory->bytes().data();
  std::byte* const source = trainer->allocate(piece);
  const auto stream = static_cast<CUstream>(trainer->stream().handle);
  // In two pieces, as a Slot of gigabytes is.
  REQUIRE(driver.register_host(first, piece, portable) == CUDA_SUCCESS);
  REQUIRE(driver.register_host(first + piece, piece, portable) == CUDA_SUCCESS);
  CHECK(driver.register_host(first, piece, portable) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  for (std::uint32_t word = 1; word <= 3; ++word) {
    trainer->fill(source, word, piece / sizeof(word));
    REQUIRE(driver.copy_to_host(first + piece, GpuTrainer::on_gpu(source), piece, stream) ==
            CUDA_SUCCESS);
    trainer->synchronize();
    CHECK(holds(memory->bytes().subspan(piece), word));
  }
  // libckpt never does it; whether it were refused is only told.
  const CUresult across =
      driver.copy_to_host(first + piece / 2, GpuTrainer::on_gpu(source), piece, stream);
  trainer->synchronize();
  WARN("a copy over two registrations: CUDA error " << static_cast<int>(across));
  REQUIRE(driver.unregister_host(first) == CUDA_SUCCESS);
  REQUIRE(driver.unregister_host(first + piece) == CUDA_SUCCESS);
  CHECK(driver.unregister_host(first) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_CASE("gpu driver: neighbouring allocations are told apart, and captured", "[gpu]") {
  const auto trainer = open_trainer();
  const auto& driver = trainer->driver();
  std::vector<std::byte*> parts;
  for (std::size_t i = 0; i < 32; ++i) parts.push_back(trainer->allocate(piece));
  std::sort(parts.begin(), parts.end());
  std::size_t neighbours = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    trainer->fill(parts[i], static_cast<std::uint32_t>(100 + i), piece / sizeof(std::uint32_t));
    neighbours += i > 0 && parts[i - 1] + piece == parts[i];
    for (const std::size_t offset : {std::size_t{0}, std::size_t{4}, piece - 1}) {
      CUdeviceptr begin = 0;
      REQUIRE(driver.pointer_attribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                       GpuTrainer::on_gpu(parts[i] + offset)) == CUDA_SUCCESS);
      CHECK(begin == GpuTrainer::on_gpu(parts[i]));
    }
  }
  WARN(neighbours << " of 31 allocations follow the one before without a gap");
  Captures captures(parts, 0);
  captures.start(trainer->stream());
  const auto found = captures.end();
  for (std::size_t i = 0; i < parts.size(); ++i)
    CHECK(holds(found.subspan(i * piece, piece), static_cast<std::uint32_t>(100 + i)));
}

TEST_CASE("gpu driver: an event that was never recorded has ended, and a recorded one waits",
          "[gpu]") {
  const auto trainer = open_trainer();
  const auto& driver = trainer->driver();
  CUevent event = nullptr;
  REQUIRE(driver.create_event(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  CHECK(driver.query_event(event) == CUDA_SUCCESS);
  const auto stream = static_cast<CUstream>(trainer->stream().handle);
  REQUIRE(driver.record_event(event, stream) == CUDA_SUCCESS);
  trainer->synchronize();
  CHECK(driver.query_event(event) == CUDA_SUCCESS);
  CHECK(driver.destroy_event(event) == CUDA_SUCCESS);
}

TEST_CASE("gpu driver: captures are ordered by whatever stream a trainer names", "[gpu]") {
  const auto trainer = open_trainer();
  const auto& driver = trainer->driver();
  CUstream blocking = nullptr;
  REQUIRE(driver.create_stream(&blocking, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  const std::vector<CUstream> streams = {static_cast<CUstream>(trainer->stream().handle), nullptr,
                                         CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, blocking};
  std::byte* const source = trainer->allocate(piece);
  Captures captures({source}, 0);
  std::uint32_t word = 7;
  for (const CUstream stream : streams) {
    INFO("stream " << static_cast<void*>(stream));
    const auto write = [&](std::uint32_t what) {
      for (int i = 0; i < 50; ++i)  // The last one counts, and comes late.
        REQUIRE(driver.set_words(GpuTrainer::on_gpu(source), what + (i < 49 ? 1000 : 0),
                                 piece / sizeof(what), stream) == CUDA_SUCCESS);
    };
    write(++word);
    captures.start({stream});
    captures.fence({stream});
    write(word + 500);
    CHECK(holds(captures.end(), word));
    trainer->synchronize();
  }
  CHECK(driver.destroy_stream(blocking) == CUDA_SUCCESS);
}

TEST_CASE("gpu driver: both signatures of the batched copy do the same", "[gpu]") {
  const auto trainer = open_trainer();
  const auto stream = static_cast<CUstream>(trainer->stream().handle);
  const auto older = trainer->find<PFN_cuMemcpyBatchAsync_v12080>("cuMemcpyBatchAsync", 12080);
  const auto newer = trainer->find<device::CopyBatch13000>("cuMemcpyBatchAsync", 13000);
  CHECK((older != nullptr) == (trainer->driver().version >= 12080));
  CHECK((newer != nullptr) == (trainer->driver().version >= 13000));
  CHECK(trainer->driver().has_batch_copy() == (older != nullptr));
  const auto memory = shared_pages(2 * piece);
  std::byte* const first = memory->bytes().data();
  REQUIRE(trainer->driver().register_host(first, 2 * piece, portable) == CUDA_SUCCESS);
  std::byte* const source = trainer->allocate(piece);
  for (const bool is_newer : {false, true}) {
    if (is_newer ? newer == nullptr : older == nullptr) continue;
    const std::uint32_t word = is_newer ? 31 : 21;
    trainer->fill(source, word, piece / sizeof(word));
    std::vector<CUdeviceptr> targets, sources;
    std::vector<std::size_t> sizes;
    for (std::size_t part = 0; part < 100; ++part) {
      targets.push_back(GpuTrainer::on_gpu(first + part * 8192));
      sources.push_back(GpuTrainer::on_gpu(source + part * 4096));
      sizes.push_back(4096);
    }
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    std::size_t begin = 0;
    std::size_t failed = 0;
    const CUresult result = is_newer ? newer(targets.data(), sources.data(), sizes.data(),
                                             sizes.size(), &attributes, &begin, 1, stream)
                                     : older(targets.data(), sources.data(), sizes.data(),
                                             sizes.size(), &attributes, &begin, 1, &failed, stream);
    INFO("signature of CUDA " << (is_newer ? "13.0" : "12.8"));
    REQUIRE(result == CUDA_SUCCESS);
    trainer->synchronize();
    for (std::size_t part = 0; part < 100; ++part)
      CHECK(holds(memory->bytes().subspan(part * 8192, 4096), word));
  }
  REQUIRE(trainer->driver().unregister_host(first) == CUDA_SUCCESS);
}

TEST_CASE("gpu driver: memory of a stream-ordered pool is captured as any other", "[gpu]") {
  const auto trainer = open_trainer();
  const auto allocate = trainer->find<PFN_cuMemAllocAsync_v11020>("cuMemAllocAsync", 11020);
  const auto release = trainer->find<PFN_cuMemFreeAsync_v11020>("cuMemFreeAsync", 11020);
  if (allocate == nullptr || release == nullptr) {
    WARN("no answer: this driver has no pools");
    return;
  }
  const auto stream = static_cast<CUstream>(trainer->stream().handle);
  std::vector<std::byte*> parts;
  for (std::uint32_t i = 0; i < 8; ++i) {
    CUdeviceptr address = 0;
    REQUIRE(allocate(&address, piece, stream) == CUDA_SUCCESS);
    parts.push_back(at(address));
    trainer->fill(parts.back(), i + 1, piece / sizeof(i));
  }
  {
    Captures captures(parts, 0);
    captures.start(trainer->stream());
    const auto found = captures.end();
    for (std::uint32_t i = 0; i < 8; ++i) CHECK(holds(found.subspan(i * piece, piece), i + 1));
  }
  for (std::byte* const part : parts)
    CHECK(release(GpuTrainer::on_gpu(part), stream) == CUDA_SUCCESS);
}

TEST_CASE("gpu driver: memory that is mapped piece by piece is captured as one", "[gpu]") {
  // PyTorch's expandable segments: neighbours in one range of addresses, each with memory of its
  // own behind it.
  const auto trainer = open_trainer();
  const auto reserve = trainer->find<PFN_cuMemAddressReserve_v10020>("cuMemAddressReserve", 10020);
  const auto make = trainer->find<PFN_cuMemCreate_v10020>("cuMemCreate", 10020);
  const auto map = trainer->find<PFN_cuMemMap_v10020>("cuMemMap", 10020);
  const auto open = trainer->find<PFN_cuMemSetAccess_v10020>("cuMemSetAccess", 10020);
  const auto unmap = trainer->find<PFN_cuMemUnmap_v10020>("cuMemUnmap", 10020);
  const auto release = trainer->find<PFN_cuMemRelease_v10020>("cuMemRelease", 10020);
  const auto give_back = trainer->find<PFN_cuMemAddressFree_v10020>("cuMemAddressFree", 10020);
  if (reserve == nullptr || make == nullptr) {
    WARN("no answer: this driver maps no memory");
    return;
  }
  constexpr std::size_t count = 4;
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;  // Of GPU 0.
  CUdeviceptr first = 0;
  REQUIRE(reserve(&first, count * piece, 0, 0, 0) == CUDA_SUCCESS);
  std::vector<std::byte*> parts;
  for (std::size_t i = 0; i < count; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    REQUIRE(make(&handle, piece, &kind, 0) == CUDA_SUCCESS);
    REQUIRE(map(first + i * piece, piece, 0, handle, 0) == CUDA_SUCCESS);
    REQUIRE(release(handle) == CUDA_SUCCESS);  // Lives as long as it is mapped.
    parts.push_back(at(first + i * piece));
  }
  const CUmemAccessDesc access{kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  REQUIRE(open(first, count * piece, &access, 1) == CUDA_SUCCESS);
  CUdeviceptr begin = 0;
  CHECK(trainer->driver().pointer_attribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                            first + piece) == CUDA_SUCCESS);
  WARN("the second piece begins " << first + piece - begin << " bytes after its range");
  for (std::uint32_t i = 0; i < count; ++i) trainer->fill(parts[i], i + 1, piece / sizeof(i));
  {
    Captures captures(parts, 0);
    captures.start(trainer->stream());
    const auto found = captures.end();
    for (std::uint32_t i = 0; i < count; ++i) CHECK(holds(found.subspan(i * piece, piece), i + 1));
  }
  trainer->synchronize();
  CHECK(unmap(first, count * piece) == CUDA_SUCCESS);
  CHECK(give_back(first, count * piece) == CUDA_SUCCESS);
}

TEST_CASE("gpu driver: managed memory is captured, or refused in words", "[gpu]") {
  const auto trainer = open_trainer();
  const auto allocate = trainer->find<PFN_cuMemAllocManaged_v6000>("cuMemAllocManaged", 6000);
  if (allocate == nullptr) {
    WARN("no answer: this driver has no managed memory");
    return;
  }
  CUdeviceptr address = 0;
  REQUIRE(allocate(&address, piece, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  trainer->fill(at(address), 9, piece / sizeof(std::uint32_t));
  const auto pins = std::make_shared<device::MemoryPins>();
  const auto gpus = device::Gpus::open({}, pins).value();
  if (const auto found = gpus->device_of(at(address), 0); !found) {
    WARN("managed memory: " << found.error().message());
    CHECK(found.error().code() == Errc::invalid_argument);
  } else {
    Captures captures({at(address)}, 0);
    captures.start(trainer->stream());
    CHECK(holds(captures.end(), 9));
  }
  pins->stop();
  trainer->synchronize();
  CHECK(trainer->driver().free(address) == CUDA_SUCCESS);
}

TEST_CASE("gpu driver: a context that was reset is told from the one that comes next", "[gpu]") {
  using Reset = PFN_cuDevicePrimaryCtxReset_v11000;
  const auto reset = open_trainer()->find<Reset>("cuDevicePrimaryCtxReset", 11000);
  REQUIRE(reset != nullptr);
  const auto driver = device::CudaDriver::open().value();
  if (driver->context_id == nullptr) {
    WARN("no answer: this driver is older than CUDA 12.0");
    return;
  }
  CUcontext before = nullptr;
  CUcontext after = nullptr;
  REQUIRE(driver->retain_context(&before, 0) == CUDA_SUCCESS);
  const device::ContextIdentity identity(*driver, before);
  CHECK(identity.check());
  REQUIRE(reset(0) == CUDA_SUCCESS);
  CHECK_FALSE(identity.check());
  REQUIRE(driver->retain_context(&after, 0) == CUDA_SUCCESS);
  CHECK_FALSE(identity.check());
  CHECK(device::ContextIdentity(*driver, after).check());
  WARN("the next context has " << (after == before ? "the same" : "another") << " address");
  CHECK(driver->release_context(0) == CUDA_SUCCESS);
  CHECK(driver->release_context(0) == CUDA_SUCCESS);
}

TEST_CASE("gpu driver: a stream that is captured into a graph is seen, and its graph survives",
          "[gpu]") {
  const auto trainer = open_trainer();
  const auto begin = trainer->find<PFN_cuStreamBeginCapture_v10010>("cuStreamBeginCapture", 10010);
  const auto end = trainer->find<PFN_cuStreamEndCapture_v10000>("cuStreamEndCapture", 10000);
  REQUIRE(begin != nullptr);
  REQUIRE(end != nullptr);
  std::byte* const source = trainer->allocate(piece);
  trainer->fill(source, 5, piece / sizeof(std::uint32_t));
  trainer->synchronize();
  Captures captures({source}, 0);
  CUstream other = nullptr;
  REQUIRE(trainer->driver().create_stream(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  // A capture of ours while another stream records a graph: neither breaks the other.
  REQUIRE(begin(other, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CHECK(trainer->driver().is_capturing(other, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  captures.start(trainer->stream());
  captures.fence(trainer->stream());
  CHECK(holds(captures.end(), 5));
  CHECK(end(other, &graph) == CUDA_SUCCESS);
  CHECK(trainer->driver().destroy_stream(other) == CUDA_SUCCESS);
}

}  // namespace ckpt::test
