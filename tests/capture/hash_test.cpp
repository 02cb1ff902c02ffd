// Goal:   a GPU takes checksums of tensors as they were at the save, bit for bit as a processor
//         would, beside the copies; and where it cannot, captures go on without them.
// Method: the trainer of capture_world.hpp, which overwrites its tensors as soon as it may, with
//         checksums of all or parts of them; each of the driver's failures; tensors of many slices.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "base/fingerprint.hpp"
#include "base/units.hpp"
#include "capture/capture_world.hpp"
#include "capture/planted_failures.hpp"
#include "device/cuda_fingerprint.hpp"
#include "support/patience.hpp"
#include "support/random_bytes.hpp"

namespace ckpt::test {

namespace {

WorldOptions hashed_options(std::uint64_t seed, const std::string& words = "") {
  WorldOptions options = options_of(seed, words);
  options.has_hashes = true;
  options.device.is_checked = true;  // So there are fingerprints.
  return options;
}

// One tensor of a GPU with its run, as a Snapshotter has it.
class HashedTensor final : private device::CopyListener {
 public:
  HashedTensor(const std::string& words, std::size_t bytes)
      : trainer_(words), bytes_(bytes), data_(trainer_.allocate(bytes)) {
    device::GpuOptions options;
    options.batch_bytes = 64 * KiB;
    options.is_checked = true;
    gpus_ = device::Gpus::open(options, pins_).value();
    run_ = gpus_->device_of(data_, 0).value()->make_hash_run({{data_, bytes_}}, *this);
    REQUIRE(run_ != nullptr);
  }
  ~HashedTensor() override {
    trainer_.hold(false);  // Also where a test has failed.
    run_.reset();
    pins_->stop();
  }
  StandInTrainer& trainer() { return trainer_; }
  void write(std::uint64_t seed) { trainer_.write(data_, random_bytes(bytes_, seed)); }
  device::HashRun& start(const device::Stretch& stretch) {
    stretch_ = stretch;
    run_->choose({&stretch_, 1});
    REQUIRE(run_->start({{}, trainer_.stream()}));
    return *run_;
  }
  void require_checksum(std::uint64_t seed) {
    REQUIRE(run_->wait_idle(soon()));
    REQUIRE(run_->checksums().size() == 1);
    const auto bytes = random_bytes(bytes_, seed);
    REQUIRE(run_->checksums().front() == short_fingerprint(fingerprint_of(std::span(bytes).subspan(
                                             stretch_.offset, stretch_.bytes))));
  }

 private:
  void run_ended(Status status) override { CHECK(status); }

  StandInTrainer trainer_;
  const std::size_t bytes_;
  std::byte* const data_;
  device::Stretch stretch_;
  const std::shared_ptr<device::MemoryPins> pins_ = std::make_shared<device::MemoryPins>();
  std::unique_ptr<device::Gpus> gpus_;
  std::unique_ptr<device::HashRun> run_;
};

}  // namespace

TEST_CASE("hash: checksums are of the tensors at the save, for many orders of things",
          "[unit][capture]") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    WorldOptions options = hashed_options(seed);
    options.is_pinned = seed % 6 != 0;
    options.gpus = seed % 5 == 0 ? 2 : 1;
    options.guarded = seed % 4 == 0 ? Guarded::all : Guarded::some;
    if (seed % 2 == 0) options.device.gather = GpuGather::on;
    if (seed % 3 == 0) options.words += " fifo=1";
    if (seed % 3 == 1) options.words += " eager=1";
    if (seed % 7 == 0) options.device.skips_unchanged = true;
    // Slices of one entry, and of more than there are.
    if (seed % 4 == 1) options.device.batch_bytes = 8 * KiB;
    if (seed % 4 == 2) options.device.batch_bytes = 32 * MiB;
    CaptureWorld world(options);
    const bool is_good = world.run(6);
    INFO("seed " << seed << ": " << world.first_error() << world.findings());
    REQUIRE(is_good);
    REQUIRE(world.good() == 6);
    REQUIRE(world.hashed() == 6);
  }
}

TEST_CASE("hash: without fingerprints, or where a kernel would wait, none are taken",
          "[unit][capture]") {
  const bool has_one_queue = GENERATE(true, false);
  WorldOptions options = hashed_options(3);
  options.device.is_checked = has_one_queue;
  if (has_one_queue) REQUIRE(::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1) == 0);
  CaptureWorld world(options);
  const bool is_good = world.run(3);
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  REQUIRE(is_good);
  REQUIRE(world.good() == 3);
  REQUIRE(world.hashed() == 0);
}

TEST_CASE("hash: a refused launch costs the checksums of one capture", "[unit][capture]") {
  // With skip_unchanged the copies do without the kernel, too. Launches: two empty ones first.
  std::size_t fewer = 0;
  for (std::uint64_t launch = 3; launch <= 40; ++launch) {
    WorldOptions options = hashed_options(8, fmt::format("fail_launch={}", launch));
    options.device.is_checked = false;
    options.device.skips_unchanged = true;
    CaptureWorld world(options);
    const bool is_good = world.run(5);
    INFO("launch " << launch << ": " << world.findings() << world.first_error());
    REQUIRE(is_good);
    REQUIRE(world.good() == 5);
    REQUIRE(world.hashed() >= 4);
    fewer += world.hashed() == 4 ? 1 : 0;
  }
  REQUIRE(fewer > 5);
}

TEST_CASE("hash: an error at any call of the driver is no wrong checksum, and no wrong byte",
          "[unit][capture]") {
  WorldOptions options = hashed_options(7, "eager=1");
  options.device.batch_bytes = 512 * KiB;
  options.device.batch_copies_max = 64;
  require_reports_of_failed_calls(options, Second::other);
}

TEST_CASE("hash: its memory is freed, and used again by the next plan", "[unit][capture]") {
  {
    CaptureWorld world(hashed_options(9));
    REQUIRE(world.run(2));
    REQUIRE(stand_in().counts().pinned_ranges > 0);
  }
  REQUIRE(stand_in().counts().pinned_ranges == 0);
  REQUIRE(stand_in().counts().live_events == 0);
  REQUIRE(stand_in().violations() == std::string());
}

TEST_CASE("hash: beside training one slice is queued at a time", "[unit][capture]") {
  // Slices of 512 KiB, and one entry, and a fragment.
  HashedTensor tensor("seed=2", 4 * MiB + 64 * KiB + 3);
  tensor.write(1);
  const auto before = stand_in().counts().kernels;
  tensor.trainer().hold(true);
  device::HashRun& run = tensor.start({0, 4 * MiB + 64 * KiB + 3});
  REQUIRE_FALSE(run.wait_idle(std::chrono::steady_clock::now() + std::chrono::milliseconds(20)));
  REQUIRE(stand_in().counts().kernels <= before + 1);
  tensor.trainer().hold(false);
  tensor.require_checksum(1);
  REQUIRE(stand_in().counts().kernels == before + 9);
  REQUIRE(stand_in().counts().blocks_max == device::CudaFingerprint::blocks_beside_training);
}

TEST_CASE("hash: a fence queues what is left, and a stream has room for it", "[unit][capture]") {
  constexpr std::size_t bytes = 100 * MiB + 5;  // 200 slices, one by one.
  HashedTensor tensor("seed=3 pending_max=100", bytes);
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    tensor.write(seed);
    const auto before = stand_in().counts().kernels;
    tensor.trainer().hold(true);
    device::HashRun& run = tensor.start({0, bytes});
    REQUIRE(run.fence(tensor.trainer().stream()));
    REQUIRE(stand_in().counts().blocks_max == device::CudaFingerprint::blocks_of_a_whole_gpu);
    tensor.write(100);  // Waits for it.
    tensor.trainer().hold(false);
    tensor.require_checksum(seed);
    REQUIRE(stand_in().counts().kernels <= before + 65);
  }
  REQUIRE(stand_in().counts().launches_blocked == 0);
}

TEST_CASE("hash: nothing to read is no work for the GPU", "[unit][capture]") {
  HashedTensor tensor("seed=4", MiB);
  const auto calls = stand_in().counts().calls;
  tensor.start({17, 0});
  tensor.require_checksum(1);
  REQUIRE(stand_in().counts().calls == calls);
}

}  // namespace ckpt::test
