// Goal:   whatever a trainer does with its streams, threads, graphs and contexts, a capture is
//         ordered as it should be or refused, and no handle is used that is no more.
// Method: one tensor that holds one byte all over, captures of it by streams of every kind, and
//         the next byte queued right after the guard; over seeds of the stand-in. Contexts are
//         reset, destroyed and shut down in mid-capture.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "base/units.hpp"
#include "device/gpus.hpp"
#include "support/cuda_stand_in/stand_in.hpp"
#include "support/patience.hpp"

namespace ckpt::test {

using Catch::Contains;

namespace {

constexpr std::uint64_t habit_seeds = 12;
constexpr std::size_t whole_bytes = 256 * KiB;
constexpr std::size_t strip_bytes = 16 * KiB;

// Scene: a trainer with one tensor, and a run that copies it in eight batches.
class Scene final : device::CopyListener {
 public:
  explicit Scene(const std::string& words, bool is_pinned = true) : trainer_(words) {
    source_ = trainer_.allocate(whole_bytes);
    const auto first = page_bytes - reinterpret_cast<std::uintptr_t>(memory_->data()) % page_bytes;
    slot_ = std::span(*memory_).subspan(first, whole_bytes);
    if (is_pinned) pinned_ = pins_->hold(slot_, memory_);
    device::CopyList list;
    for (std::uint64_t at = 0; at < whole_bytes; at += strip_bytes) {
      list.strips.push_back({at, strip_bytes, list.pieces.size(), 1});
      list.pieces.push_back({source_ + at, at, strip_bytes});
    }
    device_ = gpus_->device_of(source_, 0).value();
    run_ = device_->make_run(std::move(list), *this);
    REQUIRE(pins_->wait_settled(soon()));
  }
  ~Scene() override { close(); }

  // As a Checkpointer's end does.
  void close() {
    run_.reset();
    pins_->stop();
    pinned_.reset();
    gpus_.reset();
  }

  StandInTrainer& trainer() { return trainer_; }
  const device::CudaDriver& driver() const { return trainer_.driver(); }
  device::Device& device() { return *device_; }
  device::CopyRun& run() { return *run_; }
  Status start(Stream stream) { return run_->start({slot_, stream, false}); }

  // An update, in the order of the stream: the whole tensor is this byte.
  void write(Stream stream, unsigned char value) {
    writes_.push_back(std::make_unique<Write>(Write{source_, value}));
    REQUIRE(stand_in().launch(stream.handle, carry_out, writes_.back().get()) == CUDA_SUCCESS);
  }
  // At its end the Slot holds this byte all over.
  bool ends_with(unsigned char value) {
    return run_->wait_idle(soon()) && ended_ &&
           std::all_of(slot_.begin(), slot_.end(),
                       [&](std::byte byte) { return byte == std::byte{value}; });
  }
  // A whole capture by one stream, which the update follows: both are ordered.
  bool captures_by(Stream stream, unsigned char value) {
    write(stream, value);
    REQUIRE(start(stream));
    REQUIRE(run_->fence(stream));
    write(stream, static_cast<unsigned char>(value + 1));
    const bool is_right = ends_with(value);
    trainer_.synchronize();  // Else the next one's first update might come before this one's last.
    return is_right;
  }
  const Status& ended() const { return ended_; }
  template <class Function>
  Function* find(const char* name, int version) const {
    return reinterpret_cast<Function*>(trainer_.find(name, version));
  }
  CUstream make_stream(unsigned int flags) const {
    CUstream stream = nullptr;
    REQUIRE(driver().create_stream(&stream, flags) == CUDA_SUCCESS);
    return stream;
  }

 private:
  struct Write {
    std::byte* target;
    unsigned char value;
  };
  static void carry_out(void* argument) {
    const auto& write = *static_cast<Write*>(argument);
    const std::vector<unsigned char> bytes(whole_bytes, write.value);
    stand_in().poke(reinterpret_cast<std::uintptr_t>(write.target), bytes.data(), bytes.size());
  }
  void run_ended(Status status) override { ended_ = std::move(status); }

  StandInTrainer trainer_;
  std::shared_ptr<device::MemoryPins> pins_ = std::make_shared<device::MemoryPins>();
  std::unique_ptr<device::Gpus> gpus_ =
      device::Gpus::open({0, whole_bytes / 8, 1024}, pins_).value();
  std::shared_ptr<std::vector<std::byte>> memory_ =
      std::make_shared<std::vector<std::byte>>(whole_bytes + 2 * page_bytes);
  std::span<std::byte> slot_;
  std::shared_ptr<const void> pinned_;
  std::byte* source_ = nullptr;
  device::Device* device_ = nullptr;
  std::unique_ptr<device::CopyRun> run_;
  std::vector<std::unique_ptr<Write>> writes_;
  Status ended_;
};

std::string violations() {
  return stand_in().violations();
}

}  // namespace

TEST_CASE("habits: captures are ordered by whatever stream is named", "[unit][capture]") {
  for (std::uint64_t seed = 1; seed <= habit_seeds; ++seed) {
    INFO("seed " << seed);
    {
      Scene scene(fmt::format("seed={}", seed));
      for (CUstream stream :
           {static_cast<CUstream>(nullptr), CU_STREAM_LEGACY, CU_STREAM_PER_THREAD,
            scene.make_stream(CU_STREAM_DEFAULT), scene.make_stream(CU_STREAM_NON_BLOCKING)})
        REQUIRE(scene.captures_by({stream}, static_cast<unsigned char>(2 * seed)));
    }
    REQUIRE(violations() == "");
  }
}

TEST_CASE("habits: the update may be queued on another stream than the save, and by another thread",
          "[unit][capture]") {
  for (std::uint64_t seed = 1; seed <= habit_seeds; ++seed) {
    INFO("seed " << seed);
    {
      Scene scene(fmt::format("seed={}", seed));
      const Stream saved{scene.make_stream(CU_STREAM_NON_BLOCKING)};
      const Stream updated{scene.make_stream(CU_STREAM_NON_BLOCKING)};
      scene.write(saved, 7);
      REQUIRE(scene.start(saved));
      std::thread updates([&] {
        REQUIRE(scene.driver().push_context(scene.trainer().context()) == CUDA_SUCCESS);
        // Twice, and on its own thread's default stream as well.
        for (const Stream stream : {updated, updated, Stream{CU_STREAM_PER_THREAD}})
          REQUIRE(scene.run().fence(stream));
        scene.write(seed % 2 == 0 ? updated : Stream{CU_STREAM_PER_THREAD}, 8);
      });
      updates.join();
      REQUIRE(scene.ends_with(7));
    }
    REQUIRE(violations() == "");
  }
}

TEST_CASE("habits: a stream of a context of the trainer's own, which goes before we do",
          "[unit][capture]") {
  for (std::uint64_t seed = 1; seed <= habit_seeds; ++seed) {
    INFO("seed " << seed);
    {
      Scene scene(fmt::format("seed={}", seed));
      auto* create = scene.find<CUresult(CUcontext*, unsigned, CUdevice)>("cuCtxCreate", 3020);
      auto* destroy = scene.find<CUresult(CUcontext)>("cuCtxDestroy", 4000);
      for (unsigned char round = 0; round < 3; ++round) {
        CUcontext own = nullptr;
        REQUIRE(create(&own, 0, 0) == CUDA_SUCCESS);
        REQUIRE(scene.captures_by({scene.make_stream(CU_STREAM_NON_BLOCKING)},
                                  static_cast<unsigned char>(10 * round)));
        REQUIRE(destroy(own) == CUDA_SUCCESS);
        REQUIRE(scene.captures_by(scene.trainer().stream(), 99));
      }
    }
    REQUIRE(violations() == "");
    REQUIRE(stand_in().counts().live_events == 0);
  }
}

TEST_CASE("habits: a stream that was destroyed starts nothing, and a guard of it still holds",
          "[unit][capture]") {
  {
    Scene scene("seed=2");
    const Stream gone{scene.make_stream(CU_STREAM_NON_BLOCKING)};
    REQUIRE(scene.driver().destroy_stream(static_cast<CUstream>(gone.handle)) == CUDA_SUCCESS);
    const Status started = scene.start(gone);
    REQUIRE_FALSE(started);
    REQUIRE_THAT(started.error().text(), Contains("the stream that was passed"));
    const Stream stream = scene.trainer().stream();
    scene.write(stream, 3);
    REQUIRE(scene.start(stream));
    // Its copies have left the tensor when it returns: no stream has to wait.
    REQUIRE(scene.run().fence(gone));
    scene.write({scene.make_stream(CU_STREAM_NON_BLOCKING)}, 4);
    REQUIRE(scene.ends_with(3));
  }
  REQUIRE(violations() == "");
}

TEST_CASE("habits: tensors made and let go break no graph that is captured meanwhile",
          "[unit][capture]") {
  const auto mode = GENERATE(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                             CU_STREAM_CAPTURE_MODE_RELAXED);
  const bool is_pinned = GENERATE(true, false);
  INFO("mode " << mode << (is_pinned ? "" : ", by the ring"));
  std::optional<Scene> scene;
  scene.emplace("seed=5", is_pinned);
  auto* begin = scene->find<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture", 10010);
  const CUstream other = scene->make_stream(CU_STREAM_NON_BLOCKING);
  REQUIRE(begin(other, mode) == CUDA_SUCCESS);
  REQUIRE(scene->captures_by(scene->trainer().stream(), 40));
  scene->close();
  REQUIRE(violations() == "");
}

TEST_CASE("habits: a restore while a graph is captured is refused in words", "[unit][capture]") {
  Scene scene("seed=6");
  auto* begin = scene.find<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture", 10010);
  auto* end = scene.find<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture", 10000);
  const CUstream other = scene.make_stream(CU_STREAM_NON_BLOCKING);
  REQUIRE(begin(other, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  const Status refused = scene.device().quiesce(soon());
  REQUIRE_FALSE(refused);
  REQUIRE(refused.error().code() == Errc::unsupported);
  REQUIRE_THAT(refused.error().text(), Contains("CUDA graph"));
  REQUIRE(end(other, nullptr) == CUDA_SUCCESS);
  REQUIRE(scene.device().quiesce(soon()));
}

TEST_CASE("habits: a GPU that is reset in mid-capture ends the captures, and no handle is used",
          "[unit][capture]") {
  // The next context has the address of the one before.
  const bool has_successor = GENERATE(false, true);
  const bool is_pinned = GENERATE(true, false);
  INFO((has_successor ? "with" : "without")
       << " a successor" << (is_pinned ? "" : ", by the ring"));
  {
    Scene scene("seed=7", is_pinned);
    const Stream stream = scene.trainer().stream();
    REQUIRE(scene.captures_by(stream, 1));
    scene.write(stream, 3);
    REQUIRE(scene.start(stream));
    REQUIRE(scene.find<CUresult(CUdevice)>("cuDevicePrimaryCtxReset", 11000)(0) == CUDA_SUCCESS);
    CUcontext next = nullptr;
    if (has_successor) REQUIRE(scene.driver().retain_context(&next, 0) == CUDA_SUCCESS);
    REQUIRE(scene.run().fence(stream));
    REQUIRE(scene.run().wait_idle(soon()));
    REQUIRE_FALSE(scene.ended());
    REQUIRE(scene.ended().error().code() == Errc::unavailable);
    if (has_successor) REQUIRE_THAT(scene.ended().error().text(), Contains("cudaDeviceReset"));
    const Status next_start = scene.start(stream);
    REQUIRE_FALSE(next_start);
    REQUIRE(next_start.error().code() == Errc::unavailable);
    REQUIRE_FALSE(scene.device().quiesce(soon()));
    REQUIRE_FALSE(
        scene.device().copy_in(nullptr, std::span<const std::byte>(std::vector<std::byte>(1))));
    scene.close();
    REQUIRE(violations() == "");
  }
}

TEST_CASE("habits: a process may end with a capture under way, and the driver before us",
          "[unit][capture]") {
  const bool is_pinned = GENERATE(true, false);
  Scene scene("seed=8", is_pinned);
  scene.write(scene.trainer().stream(), 3);
  REQUIRE(scene.start(scene.trainer().stream()));
  stand_in().shut_down();
  REQUIRE(scene.run().fence(scene.trainer().stream()));
  REQUIRE(scene.run().wait_idle(soon()));
  REQUIRE_FALSE(scene.ended());
  scene.close();
  REQUIRE(violations() == "");
}

}  // namespace ckpt::test
