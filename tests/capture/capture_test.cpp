// Goal:   a capture from a GPU holds the tensors as they were at the save, whatever the order in
//         which the GPU carries things out, and whatever fails: then it is reported, and the Slot
//         is left alone from that moment.
// Method: the trainer of capture_world.hpp, over many seeds; a wait that is forgotten at each
//         place; an error planted at each call of the driver, and at each copy.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <semaphore>

#include "capture/capture_world.hpp"
#include "capture/planted_failures.hpp"
#include "support/patience.hpp"

namespace ckpt::test {

namespace {

// tests/run.sh --seeds N asks for more of them.
std::uint64_t seeds() {
  const char* const asked = std::getenv("CKPT_SIM_SEEDS");
  return std::max<std::uint64_t>(40, asked != nullptr ? std::strtoull(asked, nullptr, 10) : 0);
}

}  // namespace

TEST_CASE("capture: every step's bytes are right, for many orders of things", "[unit][capture]") {
  for (std::uint64_t seed = 1; seed <= seeds(); ++seed) {
    WorldOptions options = options_of(seed);
    options.is_pinned = seed % 4 != 0;
    options.gpus = seed % 5 == 0 ? 2 : 1;
    if (seed % 3 == 0) options.words += " fifo=1";
    if (seed % 7 == 0) options.words += fmt::format(" connections={}", 1 + seed % 2);
    CaptureWorld world(options);
    INFO("seed " << seed << ": " << world.first_error());
    const bool is_good = world.run(6);
    INFO(world.findings());
    REQUIRE(is_good);
    REQUIRE(world.good() == 6);
  }
}

TEST_CASE("capture: a thousand steps with a capture each", "[unit][capture]") {
  WorldOptions options = options_of(1000);
  options.tensors = 12;
  CaptureWorld world(options);
  const bool is_good = world.run(1000);
  INFO(world.findings() << world.first_error());
  REQUIRE(is_good);
  REQUIRE(world.good() == 1000);
  const StandInCounts counts = stand_in().counts();
  REQUIRE(counts.pageable_copies == 0);
  REQUIRE(counts.batches > 1000);
}

TEST_CASE("capture: a wait that is forgotten is seen, whichever it is", "[unit][capture]") {
  // The suite must see each fault. One run for each capture, so that no wait is
  // implied by another: one before the copies, and one after them unless they have ended by then.
  const Guarded guarded = GENERATE(Guarded::none, Guarded::all);
  constexpr int waits = 5;
  for (int forgotten = 1; forgotten <= waits; ++forgotten) {
    bool is_caught = false;
    for (std::uint64_t seed = 1; seed <= 80 && !is_caught; ++seed) {
      WorldOptions options = options_of(seed, fmt::format("drop_wait={}", forgotten));
      options.guarded = guarded;
      CaptureWorld world(options);
      (void)world.run(4);
      is_caught = !world.findings().empty();
    }
    INFO("wait " << forgotten << (guarded == Guarded::all ? ", guarded" : ""));
    REQUIRE(is_caught);
  }
}

TEST_CASE("capture: an error at any call of the driver is reported, and no wrong byte is",
          "[unit][capture]") {
  require_reports_of_failed_calls(options_of(7), Second::alike);
}

TEST_CASE("capture: a copy that fails on the GPU ends the captures, and not the trainer",
          "[unit][capture]") {
  for (const int error : {700, 214}) {
    for (std::uint64_t copy = 1; copy <= 60; copy += 7) {
      require_end_of_captures(options_of(copy, fmt::format("fail_copy={} error={}", copy, error)));
    }
  }
}

namespace {

// One run of many small batches, into a pinned Slot.
struct LongRun final : device::CopyListener {
  static constexpr std::size_t bytes = 4 * MiB;
  static constexpr std::size_t batch = 64 * KiB;

  explicit LongRun(std::uint64_t copy_rate, const std::string& words = "",
                   GpuGap gap = GpuGap::memset)
      : trainer("seed=5 " + words),
        gpus(device::Gpus::open({copy_rate, batch, 1024, gap}, pins).value()) {
    std::byte* const source = trainer.allocate(bytes);
    const auto first = page_bytes - reinterpret_cast<std::uintptr_t>(memory->data()) % page_bytes;
    slot = std::span(*memory).subspan(first, bytes);
    pinned = pins->hold(slot, memory);
    device::CopyList list;
    for (std::uint64_t at = 0; at < bytes; at += 32 * KiB) {
      list.strips.push_back({at, 32 * KiB, list.pieces.size(), 1});
      list.pieces.push_back({source + at, at, 32 * KiB});
    }
    run = gpus->device_of(source, 0).value()->make_run(std::move(list), *this);
    REQUIRE(pins->wait_settled(soon()));
  }
  ~LongRun() override {
    trainer.hold(false);  // Also where a test has failed: the copies may wait for it.
    run.reset();
    pins->stop();
  }

  static device::Deadline soon() {
    return std::chrono::steady_clock::now() + std::chrono::seconds(30);
  }
  void strips_arrived(std::size_t count) override { arrived = count; }
  void run_ended(Status status) override {
    is_good = status.has_value();
    has_ended.release();
  }
  // As long as nobody asks the run to hurry, as wait_idle does. False: it hangs.
  bool wait_without_hurry() { return has_ended.try_acquire_for(std::chrono::seconds(60)); }

  StandInTrainer trainer;
  std::shared_ptr<device::MemoryPins> pins = std::make_shared<device::MemoryPins>();
  std::unique_ptr<device::Gpus> gpus;
  std::shared_ptr<std::vector<std::byte>> memory =
      std::make_shared<std::vector<std::byte>>(bytes + 2 * page_bytes);
  std::span<std::byte> slot;
  std::shared_ptr<const void> pinned;
  std::unique_ptr<device::CopyRun> run;
  std::size_t arrived = 0;
  bool is_good = false;
  std::binary_semaphore has_ended{0};
};

}  // namespace

namespace {

constexpr std::uint64_t gaps = LongRun::bytes / LongRun::batch - 1;

}  // namespace

TEST_CASE("capture: no more than two batches are queued before the fence", "[unit][capture]") {
  LongRun subject(0);
  REQUIRE(subject.run->start({subject.slot, subject.trainer.stream(), true}));
  REQUIRE(subject.wait_without_hurry());
  REQUIRE(subject.is_good);
  REQUIRE(subject.arrived == LongRun::bytes / (32 * KiB));
  REQUIRE(stand_in().counts().bytes_queued_max <= 2 * LongRun::batch);
  // Neighbours on both sides are one copy.
  REQUIRE(stand_in().counts().copies == LongRun::bytes / LongRun::batch);
  // Between two batches another engine has a word to write: there the trainer's copies get in.
  REQUIRE(stand_in().counts().words_set == gaps);
}

TEST_CASE("capture: a save queues one batch, and leaves the others to a thread of ours",
          "[unit][capture]") {
  // To queue a batch of small tensors takes milliseconds, or as long as its stream has no room.
  LongRun subject(0);
  const std::uint64_t before = stand_in().counts().copies_by_trainer;
  REQUIRE(subject.run->start({subject.slot, subject.trainer.stream(), true}));
  REQUIRE(stand_in().counts().copies_by_trainer == before + 1);
  REQUIRE(subject.wait_without_hurry());
  REQUIRE(subject.is_good);
  REQUIRE(stand_in().counts().copies_by_trainer == before + 1);
}

TEST_CASE("capture: copies keep to their rate, until a fence wants all of them",
          "[unit][capture]") {
  LongRun subject(1);  // A byte in a second: the first batch, and then nothing for a day.
  REQUIRE(subject.run->start({subject.slot, subject.trainer.stream(), true}));
  REQUIRE(stand_in().counts().copies == 1);
  REQUIRE(subject.run->fence(subject.trainer.stream()));
  REQUIRE(stand_in().counts().copies == LongRun::bytes / LongRun::batch);
  REQUIRE(subject.run->wait_idle(LongRun::soon()));
  REQUIRE(subject.is_good);
  // Behind a fence nobody is to be let through.
  REQUIRE(stand_in().counts().words_set == 0);
}

TEST_CASE("capture: the gap between batches is what was chosen", "[unit][capture]") {
  const auto [gap, set, written, more_copies] = GENERATE(
      table<GpuGap, std::uint64_t, std::uint64_t, std::uint64_t>({{GpuGap::none, 0, 0, 0},
                                                                  {GpuGap::memset, gaps, 0, 0},
                                                                  {GpuGap::write_value, 0, gaps, 0},
                                                                  {GpuGap::copy, 0, 0, gaps}}));
  LongRun subject(0, "", gap);
  REQUIRE(subject.run->start({subject.slot, subject.trainer.stream(), true}));
  REQUIRE(subject.wait_without_hurry());
  REQUIRE(subject.is_good);
  const StandInCounts counts = stand_in().counts();
  REQUIRE(counts.words_set == set);
  REQUIRE(counts.words_written == written);
  REQUIRE(counts.copies == gaps + 1 + more_copies);
  REQUIRE(stand_in().violations() == std::string());
}

TEST_CASE("capture: a gap that the driver does not have gives way to a memset", "[unit][capture]") {
  LongRun subject(0, "refuses_values=1", GpuGap::write_value);
  REQUIRE(subject.run->start({subject.slot, subject.trainer.stream(), true}));
  REQUIRE(subject.wait_without_hurry());
  REQUIRE(subject.is_good);
  REQUIRE(stand_in().counts().words_set == gaps);
  REQUIRE(stand_in().violations() == std::string());
}

TEST_CASE("capture: a gap goes before the kernels that the trainer has launched",
          "[unit][capture]") {
  // With CUDA_DEVICE_MAX_CONNECTIONS=1 a kernel without priority waits for all of them.
  LongRun subject(0);
  std::byte* const other = subject.trainer.allocate(KiB);
  for (int i = 0; i < 50; ++i) subject.trainer.write(other, std::vector<std::byte>(8));
  const std::uint64_t before = stand_in().counts().kernels_behind_others;
  REQUIRE(before > 0);  // The trainer's own.
  REQUIRE(subject.run->start({subject.slot, subject.trainer.stream(), true}));
  REQUIRE(subject.wait_without_hurry());
  REQUIRE(stand_in().counts().words_set > 0);
  REQUIRE(stand_in().counts().kernels_behind_others == before);
}

TEST_CASE("capture: copies go on beside a kernel without end, and kernels that wait for it",
          "[unit][capture]") {
  // All streams without priority share one queue of the hardware, as Megatron asks for.
  // A memset would wait for them: `auto` leaves it out there.
  for (const GpuGap gap : {GpuGap::none, GpuGap::write_value}) {
    LongRun subject(0, "connections=1", gap);
    std::byte* const other = subject.trainer.allocate(KiB);
    CUstream saved = nullptr;
    REQUIRE(subject.trainer.driver().create_stream(&saved, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    subject.trainer.write(other, std::vector<std::byte>(8));
    subject.trainer.hold(true);
    REQUIRE(subject.run->start({subject.slot, {saved}, true}));
    subject.trainer.write(other, std::vector<std::byte>(8));
    REQUIRE(subject.wait_without_hurry());
    REQUIRE(subject.is_good);
    subject.trainer.hold(false);
    REQUIRE(stand_in().violations() == std::string());
  }
}

TEST_CASE("capture: a gap that waits for the trainer's kernels is stuck in the only queue",
          "[unit][capture]") {
  // Else the claim above would prove nothing. So an H200 does it, whatever the stream's priority.
  for (const GpuGap gap : {GpuGap::memset, GpuGap::copy}) {
    LongRun subject(0, "connections=1", gap);
    std::byte* const other = subject.trainer.allocate(KiB);
    CUstream saved = nullptr;
    // With a priority, so that the save itself does not wait for the kernels.
    REQUIRE(subject.trainer.driver().create_priority_stream(&saved, CU_STREAM_NON_BLOCKING, -1) ==
            CUDA_SUCCESS);
    subject.trainer.write(other, std::vector<std::byte>(8));
    subject.trainer.hold(true);
    subject.trainer.write(other, std::vector<std::byte>(8));
    REQUIRE(subject.run->start({subject.slot, {saved}, true}));
    // The gaps that are copies count, too.
    const std::uint64_t queued = gap == GpuGap::copy ? 5 : 3;
    const bool is_stuck = comes_true([&] {
      stand_in().run_all();
      return stand_in().counts().copies == queued;
    });
    INFO(static_cast<int>(gap) << ": " << stand_in().counts().copies << " copies");
    REQUIRE(is_stuck);
    for (int look = 0; look < 1000; ++look) stand_in().run_all();
    REQUIRE(stand_in().counts().copies == queued);
    REQUIRE_FALSE(subject.has_ended.try_acquire());
    subject.trainer.hold(false);
    REQUIRE(subject.wait_without_hurry());
    REQUIRE(subject.is_good);
  }
}

TEST_CASE("capture: with one queue, a gap that the driver does not have gives way to none",
          "[unit][capture]") {
  REQUIRE(::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1) == 0);
  LongRun subject(0, "connections=1 refuses_values=1", GpuGap::write_value);
  // A thread of ours chooses the gap, and must not read the environment.
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  subject.trainer.write(subject.trainer.allocate(KiB), std::vector<std::byte>(8));
  CUstream saved = nullptr;
  REQUIRE(subject.trainer.driver().create_stream(&saved, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  subject.trainer.hold(true);
  REQUIRE(subject.run->start({subject.slot, {saved}, true}));
  const bool has_ended = subject.wait_without_hurry();
  subject.trainer.hold(false);
  REQUIRE(has_ended);
  REQUIRE(subject.is_good);
  REQUIRE(stand_in().counts().words_set == 0);
}

TEST_CASE("capture: the driver is asked seldom while the trainer's work is far from its end",
          "[unit][capture]") {
  LongRun subject(0);
  subject.trainer.write(subject.trainer.allocate(KiB), std::vector<std::byte>(8));
  subject.trainer.hold(true);
  REQUIRE(subject.run->start({subject.slot, subject.trainer.stream(), true}));
  // A look is some seven calls. Looks without a pause that grows come in a fifth of this time; on a
  // slow machine they all take longer.
  const std::uint64_t before = stand_in().counts().calls;
  const auto began_at = std::chrono::steady_clock::now();
  REQUIRE(comes_true([&] { return stand_in().counts().calls > before + 400; }));
  REQUIRE(std::chrono::steady_clock::now() - began_at > std::chrono::milliseconds(25));
  subject.trainer.hold(false);
  REQUIRE(subject.wait_without_hurry());
  REQUIRE(subject.is_good);
}

TEST_CASE("capture: the trainer's own copies wait for no more than one batch", "[unit][capture]") {
  // The copy engine is a queue: what two batches in a row have queued goes through as one block.
  const auto [gap, batches] = GENERATE(table<GpuGap, std::uint64_t>(
      {{GpuGap::none, 2}, {GpuGap::memset, 1}, {GpuGap::write_value, 1}, {GpuGap::copy, 1}}));
  LongRun subject(0, "fifo=1", gap);
  void* word = nullptr;
  const device::CudaDriver& driver = subject.trainer.driver();
  REQUIRE(driver.allocate_host(&word, 4, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
  const auto from = reinterpret_cast<CUdeviceptr>(subject.trainer.allocate(4));
  CUstream small = nullptr;
  REQUIRE(driver.create_stream(&small, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  for (int round = 0; round < 40; ++round) {
    REQUIRE(subject.run->start({subject.slot, subject.trainer.stream(), true}));
    while (!subject.has_ended.try_acquire()) {
      REQUIRE(driver.copy_to_host(word, from, 4, small) == CUDA_SUCCESS);
      while (driver.query_stream(small) == CUDA_ERROR_NOT_READY) {
      }
    }
    REQUIRE(subject.run->wait_idle(LongRun::soon()));
    REQUIRE(subject.is_good);
  }
  REQUIRE(stand_in().counts().bytes_ahead_max <= batches * LongRun::batch);
  // Else the bound above would prove nothing.
  REQUIRE(stand_in().counts().bytes_ahead_max > (batches - 1) * LongRun::batch);
  REQUIRE(driver.free_host(word) == CUDA_SUCCESS);
}

TEST_CASE("capture: neither the save nor the fence waits for room in the stream",
          "[unit][capture]") {
  // 64 batches, and a stream with room for 16 launches.
  LongRun subject(1, "pending_max=16");
  REQUIRE(subject.run->start({subject.slot, subject.trainer.stream(), true}));
  REQUIRE(subject.run->fence(subject.trainer.stream()));
  REQUIRE(stand_in().counts().launches_blocked == 0);
  REQUIRE(subject.run->wait_idle(LongRun::soon()));
  REQUIRE(subject.is_good);
}

TEST_CASE("capture: single copies leave room in the stream, however many tensors there are",
          "[unit][capture]") {
  for (const char* words : {"refuses_batches=1", "host_pointers=0", "lacks_newer=1"}) {
    INFO(words);
    WorldOptions options = options_of(21, fmt::format("{} pending_max=1000", words));
    options.tensors = 1500;
    options.device = {0, 32 * MiB, 1024};
    CaptureWorld world(options);
    const bool is_good = world.run(3);
    INFO(world.findings() << world.first_error());
    REQUIRE(is_good);
    REQUIRE(world.good() == 3);
    REQUIRE(stand_in().counts().batches == 0);
  }
}

TEST_CASE("capture: a stream that is captured into a graph is refused, and nothing breaks",
          "[unit][capture]") {
  CaptureWorld world(options_of(9));
  REQUIRE(world.run(1));
  using Begin = CUresult(CUstream, CUstreamCaptureMode);
  using End = CUresult(CUstream, CUgraph*);
  const auto stream = static_cast<CUstream>(world.trainer().stream().handle);
  auto* begin = reinterpret_cast<Begin*>(world.trainer().find("cuStreamBeginCapture", 10010));
  auto* end = reinterpret_cast<End*>(world.trainer().find("cuStreamEndCapture", 10000));
  REQUIRE(begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  std::vector<std::byte> slot(MiB);
  snapshot::CaptureRequest request;
  request.step = Step{2};
  request.slot = slot;
  request.stream = world.trainer().stream();
  const Status begun = world.snapshotter().begin(request);
  REQUIRE_FALSE(begun);
  REQUIRE(begun.error().code() == Errc::unsupported);
  REQUIRE(begun.error().text().find("CUDA graph") != std::string::npos);
  REQUIRE(world.snapshotter().guard(world.trainer().stream()));
  REQUIRE(end(stream, nullptr) == CUDA_SUCCESS);
  // Where there are two GPUs, what the other one had begun ends the capture a little later.
  REQUIRE(world.snapshotter().wait_idle(LongRun::soon()));
  REQUIRE(world.failed() == 1);
  REQUIRE(world.run(2));
  REQUIRE(world.good() == 3);
}

TEST_CASE("capture: a graph that is captured meanwhile, on another stream, is not broken",
          "[unit][capture]") {
  CaptureWorld world(options_of(11));
  REQUIRE(world.run(1));
  const device::CudaDriver& driver = world.trainer().driver();
  CUstream other = nullptr;
  REQUIRE(driver.create_stream(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  using Begin = CUresult(CUstream, CUstreamCaptureMode);
  using End = CUresult(CUstream, CUgraph*);
  auto* begin = reinterpret_cast<Begin*>(world.trainer().find("cuStreamBeginCapture", 10010));
  auto* end = reinterpret_cast<End*>(world.trainer().find("cuStreamEndCapture", 10000));
  REQUIRE(begin(other, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  const bool is_good = world.run(20);
  INFO(world.findings() << world.first_error());
  REQUIRE(is_good);
  REQUIRE(world.good() == 21);
  REQUIRE(end(other, nullptr) == CUDA_SUCCESS);
  REQUIRE(driver.destroy_stream(other) == CUDA_SUCCESS);
}

}  // namespace ckpt::test
