// Goal:   a trainer whose tensors lie on a GPU saves and restores them with the public handle, bit
//         for bit; a status reports what a GPU cannot do, and no saved step is lost.
// Method: the engine in this process, a directory, and the stand-in driver: tensors that are
//         updated right after guard(), a graph's capture, a GPU that is lost at each copy, an error
//         at each call of a restore, layouts that change, a fork.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <ckpt/framework.hpp>
#include <memory>
#include <optional>

#include "base/random.hpp"
#include "support/cuda_stand_in/stand_in.hpp"
#include "support/patience.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt::test {

namespace {

// Guarded and not, around what a copy, a page and a batch of small ones are; the last on the host.
constexpr std::array<std::size_t, 6> sizes = {1, 4097, 300'000, 24, 70'001, 5000};

std::vector<std::byte> bytes_of(std::uint64_t step, std::size_t index) {
  Random random(step * 100 + index);
  std::vector<std::byte> bytes(sizes[index]);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

// GpuJob: a trainer with its tensors and its Checkpointer, as one process has them.
class GpuJob {
 public:
  // `gpus`: how many have its tensors; 0: all of them lie on the host.
  GpuJob(const std::string& dir, const std::string& words, int gpus = 1)
      : trainer_(words), gpus_(gpus) {
    Options options;
    options.job = "gpu";
    options.dir = dir;
    options.embedded = true;
    options.save_storage_interval = {1, {}};
    options.memory_budget = 64 << 20;
    options.blob_capacity = 4096;
    options.restore_deadline = std::chrono::seconds(4);
    options.gpu_gap = GpuGap::memset;  // There is nothing to measure here.
    checkpointer_.emplace(FrameworkCheckpointer::open(options).value());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      host_[i].resize(is_on_gpu(i) ? 0 : sizes[i]);
      places_.push_back(place_of(i));
      TensorRef tensor;
      tensor.data = places_[i];
      tensor.shape = {static_cast<std::int64_t>(sizes[i])};
      tensor.location = is_on_gpu(i) ? Location::cuda : Location::host;
      tensor.device_index = is_on_gpu(i) ? gpu_of(i) : 0;
      tensor.guarded = i % 2 == 0;
      added_ = checkpointer_->add(fmt::format("t{}", i), tensor);
      if (!added_) return;
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) update(0, i);
  }

  const Status& added() const { return added_; }
  StandInTrainer& trainer() { return trainer_; }
  FrameworkCheckpointer& checkpointer() { return *checkpointer_; }

  // Saves the state as it is, as `step`; then one step of training, whose state is that of `step`.
  Result<SaveOutcome> step(std::uint64_t step) {
    update_all(step, false);
    const Status guarded = checkpointer_->guard(trainer_.stream());
    if (!guarded) trouble_.push_back(guarded.error().message());
    update_all(step, true);
    // It waits for the capture before, which the GPU may still copy.
    auto saved = checkpointer_->save(Step{step}, trainer_.stream(), patience);
    if (!saved) trouble_.push_back(saved.error().message());
    return saved;
  }
  std::string difference(std::uint64_t step) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto found = is_on_gpu(i) ? trainer_.read(places_[i], sizes[i]) : host_[i];
      if (found != bytes_of(step, i)) return fmt::format("t{} is not that of step {}", i, step);
    }
    return "";
  }
  const std::vector<std::string>& trouble() const { return trouble_; }

 private:
  bool is_on_gpu(std::size_t index) const { return gpus_ > 0 && index + 1 < sizes.size(); }
  int gpu_of(std::size_t index) const { return static_cast<int>(index) % gpus_; }
  std::byte* place_of(std::size_t index) {
    if (!is_on_gpu(index)) return host_[index].data();
    if (gpu_of(index) == 0) return trainer_.allocate(sizes[index]);
    return trainer_.allocate_on(gpu_of(index), sizes[index]);
  }
  void update(std::uint64_t step, std::size_t index) {
    const auto bytes = bytes_of(step, index);
    if (is_on_gpu(index)) return trainer_.write(places_[index], bytes);
    std::ranges::copy(bytes, host_[index].begin());
  }
  void update_all(std::uint64_t step, bool guarded) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if ((i % 2 == 0) == guarded) update(step, i);
    }
  }

  StandInTrainer trainer_;
  int gpus_;
  std::array<std::vector<std::byte>, sizes.size()> host_;
  std::vector<std::byte*> places_;
  Status added_;
  std::vector<std::string> trouble_;
  std::optional<FrameworkCheckpointer> checkpointer_;  // Goes before what it copies.
};

}  // namespace

TEST_CASE("checkpointer: tensors on GPUs come back bit for bit", "[unit][capture]") {
  const TemporaryDirectory directory;
  std::uint64_t newest = 0;  // One that finds no Slot, on a slow machine, is not it.
  for (std::uint64_t life = 1; life <= 6; ++life) {
    // One life has its state on one GPU, the next on several, or the other way round.
    const int gpus = 1 + static_cast<int>(life % 3);
    GpuJob job(directory.path(), fmt::format("devices=3 seed={}", life), gpus);
    INFO("life " << life);
    REQUIRE(job.added());
    const std::uint64_t before = newest;
    const auto restored = job.checkpointer().restore();
    REQUIRE(restored.has_value() == (life > 1));
    if (restored) {
      REQUIRE(number(restored->step) == before);
      REQUIRE(job.difference(before) == "");
      REQUIRE(job.checkpointer().restored_ok(restored->step));
    }
    for (std::uint64_t step = before + 1; step <= before + 10; ++step) {
      const auto saved = job.step(step);
      REQUIRE(saved);
      if (*saved == SaveOutcome::started) newest = step;
    }
    REQUIRE(newest > before);
    REQUIRE(job.trouble().empty());
    if (!job.checkpointer().wait(Step{newest}, Level::durable, patience)) {
      FAIL("step " << newest << " did not get durable");
    }
    REQUIRE(job.checkpointer().close());
    REQUIRE(std::string(stand_in().violations()) == "");
  }
}

TEST_CASE("checkpointer: a save does not wait for a GPU that still copies the step before",
          "[unit][capture]") {
  const TemporaryDirectory directory;
  GpuJob job(directory.path(), "seed=1");
  REQUIRE(job.step(1).value() == SaveOutcome::started);
  REQUIRE(job.checkpointer().wait(Step{1}, Level::captured, patience));
  // The host runs ahead: what the trainer queued before the save has not run.
  job.trainer().hold(true);
  REQUIRE(job.step(2).value() == SaveOutcome::started);
  for (std::uint64_t step = 3; step <= 5; ++step) {
    const auto began_at = std::chrono::steady_clock::now();
    const auto saved = job.checkpointer().save(Step{step}, job.trainer().stream());
    REQUIRE(saved);
    REQUIRE(*saved == SaveOutcome::skipped_no_slot);
    // It would have been ten seconds.
    REQUIRE(std::chrono::steady_clock::now() - began_at < std::chrono::seconds(5));
  }
  REQUIRE(job.checkpointer().stats().skipped_no_slot == 3);
  // A wait for a Slot waits for the GPU as well, and no longer than that.
  const auto given_up =
      job.checkpointer().save(Step{6}, job.trainer().stream(), std::chrono::milliseconds(20));
  REQUIRE(given_up.value() == SaveOutcome::skipped_no_slot);
  job.trainer().hold(false);
  // The step that was being copied is whole, and the next save finds its way.
  REQUIRE(job.checkpointer().wait(Step{2}, Level::captured, patience));
  REQUIRE(job.step(7).value() == SaveOutcome::started);
  REQUIRE(job.checkpointer().wait(Step{7}, Level::durable, patience));
  REQUIRE(job.trouble().empty());
  REQUIRE(std::string(stand_in().violations()) == "");
}

TEST_CASE("checkpointer: the host restores a GPU's save, and the other way round",
          "[unit][capture]") {
  const int before = GENERATE(0, 1, 3);
  const int after = GENERATE(0, 1);
  const TemporaryDirectory directory;
  INFO("from " << before << " GPUs to " << after);
  const auto open = [&](int gpus) {
    auto job = std::make_unique<GpuJob>(directory.path(), "devices=3 seed=1", gpus);
    REQUIRE(job->added());
    return job;
  };
  {
    const auto job = open(before);
    REQUIRE(job->step(1).value() == SaveOutcome::started);
    REQUIRE(job->checkpointer().wait(Step{1}, Level::durable, patience));
    REQUIRE(job->checkpointer().close());
  }
  const auto job = open(after);
  REQUIRE(job->difference(1) != "");
  REQUIRE(number(job->checkpointer().restore().value().step) == 1);
  REQUIRE(job->difference(1) == "");
  REQUIRE(job->checkpointer().restored_ok(Step{1}));
  REQUIRE(job->step(2).value() == SaveOutcome::started);  // Training goes on from there.
  REQUIRE(job->checkpointer().close());
  REQUIRE(std::string(stand_in().violations()) == "");
}

TEST_CASE("checkpointer: a save into a CUDA graph is refused, and the next is not",
          "[unit][capture]") {
  const TemporaryDirectory directory;
  GpuJob job(directory.path(), "seed=3");
  REQUIRE(job.step(1));
  REQUIRE(job.checkpointer().wait(Step{1}, Level::durable, patience));  // Else step 2 is skipped.
  using Begin = CUresult(CUstream, CUstreamCaptureMode);
  using End = CUresult(CUstream, CUgraph*);
  const auto stream = static_cast<CUstream>(job.trainer().stream().handle);
  auto* begin = reinterpret_cast<Begin*>(job.trainer().find("cuStreamBeginCapture", 10010));
  auto* end = reinterpret_cast<End*>(job.trainer().find("cuStreamEndCapture", 10000));
  REQUIRE(begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  const auto saved = job.checkpointer().save(Step{2}, job.trainer().stream());
  REQUIRE_FALSE(saved);
  REQUIRE(saved.error().code() == Errc::unsupported);
  REQUIRE_THAT(saved.error().message(),
               Catch::Contains("save step 2") && Catch::Contains("CUDA graph"));
  REQUIRE(job.checkpointer().guard(job.trainer().stream()));
  REQUIRE(end(stream, nullptr) == CUDA_SUCCESS);
  REQUIRE(job.step(3));
  REQUIRE(job.checkpointer().wait(Step{3}, Level::durable, patience));
  REQUIRE(job.checkpointer().stats().failed == 1);
  REQUIRE(std::string(stand_in().violations()) == "");
}

TEST_CASE("checkpointer: a GPU that is lost ends the saves, and not the trainer, nor what it had",
          "[unit][capture]") {
  for (std::uint64_t copy = 11; copy <= 40; copy += 3) {
    const TemporaryDirectory directory;
    INFO("copy " << copy);
    {
      GpuJob job(directory.path(), fmt::format("seed={0} fail_copy={0} error=700", copy));
      for (std::uint64_t step = 1; step <= 2; ++step) {
        REQUIRE(job.step(step));
        REQUIRE(job.checkpointer().wait(Step{step}, Level::durable, patience));
      }
      // Those that find no Slot, on a slow machine, copy nothing.
      std::uint64_t started = 2;
      for (std::uint64_t step = 3; job.trouble().empty() && step <= 100; ++step) {
        const auto saved = job.step(step);
        if (saved && *saved == SaveOutcome::started) started = step;
        if (saved && *saved != SaveOutcome::started)
          (void)job.checkpointer().wait(Step{started}, Level::durable, patience);
      }
      REQUIRE_FALSE(job.trouble().empty());
      REQUIRE_THAT(job.trouble().back(), Catch::Contains("context is lost"));
      REQUIRE(job.checkpointer().stats().failed > 0);
      (void)job.checkpointer().close();
    }
    GpuJob next(directory.path(), "seed=1");
    const auto restored = next.checkpointer().restore();
    REQUIRE(restored);
    REQUIRE(number(restored->step) >= 2);
    REQUIRE(next.difference(number(restored->step)) == "");
  }
}

TEST_CASE("checkpointer: a restore onto a lost GPU fails, and leaves the step alone",
          "[unit][capture]") {
  const TemporaryDirectory directory;
  {
    GpuJob job(directory.path(), "seed=2");
    REQUIRE(job.step(1));
    REQUIRE(job.checkpointer().close());
  }
  {
    GpuJob job(directory.path(), "seed=2 fail_copy=2 error=214");
    const auto restored = job.checkpointer().restore();
    REQUIRE_FALSE(restored);
    REQUIRE(restored.error().code() == Errc::unavailable);
    // The reason itself, at the first attempt: not that of a deadline, or of the last of many.
    REQUIRE_THAT(restored.error().message(),
                 Catch::Contains("context is lost") && !Catch::Contains("given up after"));
  }
  GpuJob job(directory.path(), "seed=2");
  REQUIRE(job.checkpointer().restore());
  REQUIRE(job.difference(1) == "");
}

TEST_CASE("checkpointer: a tensor on a GPU that is not there is refused by name",
          "[unit][capture]") {
  const TemporaryDirectory directory;
  GpuJob job(directory.path(), "devices=1");
  REQUIRE(job.added());
  TensorRef tensor;
  tensor.data = job.trainer().allocate(16);
  tensor.shape = {16};
  tensor.location = Location::cuda;
  tensor.device_index = 3;
  const Status added = job.checkpointer().add("stray", tensor);
  REQUIRE_FALSE(added);
  REQUIRE(added.error().code() == Errc::invalid_argument);
  REQUIRE_THAT(added.error().message(), Catch::Contains("stray") && Catch::Contains("no GPU 3"));
}

TEST_CASE("checkpointer: a restore in which any call of the driver fails is whole or told",
          "[unit][capture]") {
  // 999: the call was refused. 700: the context is lost.
  const int error = GENERATE(999, 700);
  const TemporaryDirectory directory;
  {
    GpuJob job(directory.path(), "seed=2");
    REQUIRE(job.step(1));
    REQUIRE(job.checkpointer().close());
  }
  std::uint64_t calls = 0;
  {
    GpuJob job(directory.path(), "seed=3");
    const std::uint64_t before = stand_in().counts().calls;
    REQUIRE(job.checkpointer().restore());
    calls = stand_in().counts().calls - before;
  }
  REQUIRE(calls > 20);
  std::uint64_t told = 0;
  // A lost context takes a new one each time: a third of the calls is time enough.
  for (std::uint64_t call = 1; call <= calls; call += error == 700 ? 3 : 1) {
    GpuJob job(directory.path(), fmt::format("seed={}", call));
    stand_in().plant(call, error);
    const auto restored = job.checkpointer().restore();
    stand_in().plant(0, 0);
    INFO("call " << call << " at " << stand_in().failed_call() << ", error " << error);
    if (restored) {
      REQUIRE(job.difference(1) == "");
    } else {
      ++told;
      INFO(restored.error().message());
      // A failed restore succeeds the next time, where the context lives.
      if (error == 999) {
        REQUIRE(job.checkpointer().restore());
        REQUIRE(job.difference(1) == "");
      }
    }
    REQUIRE(std::string(stand_in().violations()) == "");
  }
  REQUIRE(told > 5);
}

TEST_CASE("checkpointer: tensors that come and go leave nothing pinned that is not mapped",
          "[unit][capture]") {
  const TemporaryDirectory directory;
  {
    GpuJob job(directory.path(), "seed=4");
    std::uint64_t step = 0;
    for (std::size_t round = 0; round < 4; ++round) {
      REQUIRE(job.step(++step));
      // In mid-capture, and larger than the Slots that there are.
      const std::size_t bytes = 400'000 << round;
      TensorRef tensor;
      tensor.data = job.trainer().allocate(bytes);
      tensor.shape = {static_cast<std::int64_t>(bytes)};
      tensor.location = Location::cuda;
      tensor.guarded = true;
      REQUIRE(job.checkpointer().add("more", tensor));
      REQUIRE(job.checkpointer().prepare());
      REQUIRE(job.step(++step));
      REQUIRE(job.checkpointer().remove("more"));
      REQUIRE(std::string(stand_in().violations()) == "");
    }
    REQUIRE(job.trouble().empty());
    REQUIRE(job.checkpointer().close());
  }
  REQUIRE(std::string(stand_in().violations()) == "");
  REQUIRE(stand_in().counts().pinned_ranges == 0);
  REQUIRE(stand_in().counts().live_events == 0);
}

TEST_CASE("checkpointer: a fork in mid-capture neither uses the GPU nor disturbs the capture",
          "[unit][capture]") {
  const TemporaryDirectory directory;
  GpuJob job(directory.path(), "seed=5");
  REQUIRE(job.step(1));
  const pid_t child = ::fork();
  if (child == 0) {
    const auto saved = job.checkpointer().save(Step{2}, job.trainer().stream());
    const bool is_refused = !saved && saved.error().code() == Errc::invalid_argument;
    {
      const FrameworkCheckpointer gone(std::move(job.checkpointer()));
    }
    ::_exit(is_refused ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  REQUIRE(job.step(2));
  REQUIRE(job.checkpointer().wait(Step{1}, Level::durable, patience));
  REQUIRE(job.trouble().empty());
  REQUIRE(std::string(stand_in().violations()) == "");
}

}  // namespace ckpt::test
