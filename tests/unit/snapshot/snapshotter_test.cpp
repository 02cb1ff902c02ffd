// Goal:   a capture shows every tensor as it was at the call, whatever the trainer does once it is
//         allowed to, and allocates nothing; what could not be copied in time is never published.
// Method: the trainer's updates are made at the earliest instant that the contract allows; a device
//         that holds copies back until told stands in for slow ones; operator new counts.
#include "snapshot/snapshotter.hpp"
#include "format/safetensors_header.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>
#include <optional>

#include "device/host_device.hpp"
#include "scene.hpp"
#include "support/patience.hpp"

namespace {
std::atomic<std::uint64_t> allocations{0};
}

void* operator new(std::size_t bytes) {
  ++allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace ckpt::snapshot {

namespace {

using test::soon;

constexpr std::uint64_t capture_chunk = 64 * KiB;

// Ended: a listener's notes on a capture, with room made beforehand.
struct Ended final : CaptureListener {
  Ended() {
    chunk_crcs.reserve(4096);
    hashes.reserve(16);
  }
  void capture_ended(const Captured& captured) override {
    ++endings;
    step = captured.step;
    is_good = captured.status.has_value();
    if (!is_good) error.emplace(captured.status.error());
    bytes = captured.bytes;
    blob_bytes = captured.blob_bytes;
    chunk_crcs.assign(captured.chunk_crcs.begin(), captured.chunk_crcs.end());
    blobs.assign(captured.blobs.begin(), captured.blobs.end());
    hashes.assign(captured.hashes.begin(), captured.hashes.end());
  }
  int endings = 0;
  Step step{};
  bool is_good = false;
  std::optional<Error> error;
  std::uint64_t bytes = 0;
  std::uint64_t blob_bytes = 0;
  std::vector<Crc32> chunk_crcs;
  std::vector<format::Extent> blobs;
  std::vector<std::optional<Crc32>> hashes;
};

struct CaptureRig {
  explicit CaptureRig(const std::vector<SceneTensor>& tensors, std::uint64_t blob_capacity = 0)
      : scene(tensors, blob_capacity),
        host(threads),
        devices{&host},
        snapshotter({scene.layout, scene.sources, scene.header, devices, capture_chunk}, ended) {}

  CaptureRequest request(std::uint64_t step) {
    CaptureRequest out;
    out.step = Step{step};
    out.timeline = 3;
    out.slot = scene.slot;
    return out;
  }
  void require_crcs_match() const {
    REQUIRE(ended.chunk_crcs.size() == div_ceil(ended.bytes, capture_chunk));
    for (std::size_t i = 0; i < ended.chunk_crcs.size(); ++i) {
      const std::uint64_t size = std::min(capture_chunk, ended.bytes - i * capture_chunk);
      REQUIRE(ended.chunk_crcs[i] == crc32(std::span(scene.slot).subspan(i * capture_chunk, size)));
    }
  }

  Scene scene;
  device::CopyThreads threads{2};
  device::HostDevice host;
  std::vector<device::Device*> devices;
  Ended ended;
  Snapshotter snapshotter;
};

const std::vector<SceneTensor> mixed = {{"guarded.large", 5 * capture_chunk + 7, true},
                                        {"open.large", 3 * capture_chunk + 1, false},
                                        {"guarded.small", 10, true},
                                        {"open.small", 1, false},
                                        {"empty", 0, false},
                                        {"guarded.chunk", capture_chunk, true}};

}  // namespace

TEST_CASE("snapshotter: unguarded tensors may change when begin returns, guarded ones after guard",
          "[unit][snapshot]") {
  CaptureRig rig(mixed);
  for (std::uint64_t step = 1; step <= 50; ++step) {
    rig.scene.fill(step);
    const auto expected = rig.scene.copy_of_contents();
    REQUIRE(rig.snapshotter.begin(rig.request(step)));
    for (std::size_t i = 0; i < rig.scene.contents.size(); ++i)
      if (!rig.scene.sources[i].is_guarded)
        std::fill(rig.scene.contents[i]->begin(), rig.scene.contents[i]->end(), std::byte{0xaa});
    REQUIRE(rig.snapshotter.guard({}));
    for (auto* content : rig.scene.contents)
      std::fill(content->begin(), content->end(), std::byte{0xbb});
    REQUIRE(rig.snapshotter.wait_idle(soon()));
    REQUIRE(rig.ended.is_good);
    REQUIRE(rig.ended.step == Step{step});
    for (std::size_t i = 0; i < expected.size(); ++i) REQUIRE(rig.scene.captured(i) == expected[i]);
    rig.require_crcs_match();
  }
  REQUIRE(rig.ended.endings == 50);
}

TEST_CASE("snapshotter: what is hashed besides is as it was at the save, too", "[unit][snapshot]") {
  Scene scene(mixed);
  std::vector<HashedSource> hashed;
  for (std::size_t i = 0; i < scene.contents.size(); ++i)
    hashed.push_back({*scene.contents[i], scene.sources[i].is_guarded});
  device::CopyThreads threads{2};
  device::HostDevice host{threads};
  std::vector<device::Device*> devices{&host};
  Ended ended;
  Snapshotter snapshotter(
      {scene.layout, scene.sources, scene.header, devices, capture_chunk, hashed}, ended);
  for (std::uint64_t step = 1; step <= 50; ++step) {
    scene.fill(step);
    std::vector<device::Stretch> stretches;
    std::vector<std::optional<Crc32>> expected;
    for (const auto* content : scene.contents) {
      const std::uint64_t begin = content->size() / (step + 1);
      const std::uint64_t bytes = step % 3 == 0 ? 0 : (content->size() - begin) / step;
      stretches.push_back({begin, bytes});
      expected.push_back(crc32(std::span(*content).subspan(begin, bytes)));
    }
    CaptureRequest request;
    request.step = Step{step};
    request.slot = scene.slot;
    if (step % 5 != 0) request.hashed = stretches;
    REQUIRE(snapshotter.begin(request));
    for (std::size_t i = 0; i < scene.contents.size(); ++i)
      if (!scene.sources[i].is_guarded)
        std::fill(scene.contents[i]->begin(), scene.contents[i]->end(), std::byte{0xaa});
    REQUIRE(snapshotter.guard({}));
    for (auto* content : scene.contents)
      std::fill(content->begin(), content->end(), std::byte{0xbb});
    REQUIRE(snapshotter.wait_idle(soon()));
    REQUIRE(ended.is_good);
    if (step % 5 == 0) {
      REQUIRE(ended.hashes.empty());
    } else {
      REQUIRE(ended.hashes == expected);
    }
  }
  REQUIRE(ended.endings == 50);
}

TEST_CASE("snapshotter: a capture ends without a guard", "[unit][snapshot]") {
  CaptureRig rig(mixed);
  rig.scene.fill(1);
  REQUIRE(rig.snapshotter.begin(rig.request(1)));
  REQUIRE(rig.snapshotter.wait_idle(soon()));
  REQUIRE(rig.ended.endings == 1);
  REQUIRE_FALSE(rig.snapshotter.is_running());
  REQUIRE(rig.snapshotter.guard({}));
}

TEST_CASE("snapshotter: destroyed while it copies, it ends the capture first", "[unit][snapshot]") {
  for (int round = 0; round < 20; ++round) {
    Scene scene(mixed);
    scene.fill(1);
    device::CopyThreads threads(2);
    device::HostDevice host(threads);
    const std::vector<device::Device*> devices = {&host};
    Ended ended;
    {
      Snapshotter snapshotter({scene.layout, scene.sources, scene.header, devices, capture_chunk},
                              ended);
      CaptureRequest request;
      request.step = Step{1};
      request.slot = scene.slot;
      REQUIRE(snapshotter.begin(request));
    }
    REQUIRE(ended.endings == 1);
    REQUIRE(ended.is_good);
  }
}

TEST_CASE("snapshotter: the header carries the step's numbers", "[unit][snapshot]") {
  CaptureRig rig(mixed);
  REQUIRE(rig.snapshotter.begin(rig.request(1)));
  REQUIRE(rig.snapshotter.wait_idle(soon()));
  const auto first = rig.scene.slot;
  REQUIRE(rig.snapshotter.begin(rig.request(900)));
  REQUIRE(rig.snapshotter.wait_idle(soon()));
  std::vector<std::byte> expected = rig.scene.header;
  format::patch_header(expected, 3, Step{900});
  REQUIRE(std::equal(expected.begin(), expected.end(), rig.scene.slot.begin()));
  REQUIRE(first != rig.scene.slot);
  rig.require_crcs_match();
}

TEST_CASE("snapshotter: blobs are copied at the call and may vary in size", "[unit][snapshot]") {
  CaptureRig rig({{"a", 100, true}}, 2 * capture_chunk + 100);
  for (const std::size_t bytes : {0ul, 1ul, 4096ul, 2ul * capture_chunk, 5ul}) {
    std::vector<std::byte> first(bytes, std::byte{1});
    std::vector<std::byte> second(7, std::byte{2});
    const std::vector<std::span<const std::byte>> blobs = {first, second};
    CaptureRequest request = rig.request(bytes + 1);
    request.blobs = blobs;
    REQUIRE(rig.snapshotter.begin(request));
    std::fill(first.begin(), first.end(), std::byte{9});
    REQUIRE(rig.snapshotter.wait_idle(soon()));
    REQUIRE(rig.ended.is_good);
    REQUIRE(rig.ended.blob_bytes == bytes + 7);
    REQUIRE(rig.ended.bytes == format::covered_bytes(rig.scene.layout, bytes + 7));
    REQUIRE(rig.ended.blobs.size() == 2);
    for (std::size_t i = 0; i < bytes; ++i)
      REQUIRE(rig.scene.slot[rig.ended.blobs[0].offset + i] == std::byte{1});
    REQUIRE(rig.scene.slot[rig.ended.blobs[1].offset] == std::byte{2});
    // Behind them zeros, and not what the Slot held before.
    for (std::uint64_t at = rig.ended.blobs[1].end(); at < rig.ended.bytes; ++at)
      REQUIRE(rig.scene.slot[at] == std::byte{0});
    rig.require_crcs_match();
  }
}

TEST_CASE("snapshotter: blobs that do not fit end the capture as failed", "[unit][snapshot]") {
  CaptureRig rig({{"a", 100, true}}, 100);
  const std::vector<std::byte> large(101), half(51);
  std::vector<std::span<const std::byte>> blobs;
  SECTION("one alone") {
    blobs = {large};
  }
  SECTION("all together") {
    blobs = {half, half};
  }
  CaptureRequest request = rig.request(1);
  request.blobs = blobs;
  const Status begun = rig.snapshotter.begin(request);
  REQUIRE_FALSE(begun);
  REQUIRE(begun.error().code() == Errc::exhausted);
  REQUIRE(rig.snapshotter.wait_idle(soon()));
  REQUIRE(rig.ended.endings == 1);
  REQUIRE_FALSE(rig.ended.is_good);
  REQUIRE(rig.snapshotter.begin(rig.request(2)));
  REQUIRE(rig.snapshotter.wait_idle(soon()));
  REQUIRE(rig.ended.is_good);
}

TEST_CASE("snapshotter: checksums can be left to the engine", "[unit][snapshot]") {
  CaptureRig rig(mixed);
  rig.scene.fill(1);
  const bool had_checksums_before = GENERATE(false, true);
  if (had_checksums_before) {
    REQUIRE(rig.snapshotter.begin(rig.request(1)));
    REQUIRE(rig.snapshotter.wait_idle(soon()));
  }
  CaptureRequest request = rig.request(2);
  request.with_checksums = false;
  REQUIRE(rig.snapshotter.begin(request));
  REQUIRE(rig.snapshotter.wait_idle(soon()));
  REQUIRE(rig.ended.is_good);
  REQUIRE(rig.ended.chunk_crcs.empty());
  for (std::size_t i = 0; i < rig.scene.contents.size(); ++i)
    REQUIRE(rig.scene.captured(i) == *rig.scene.contents[i]);
}

TEST_CASE("snapshotter: a capture allocates nothing", "[unit][snapshot]") {
  std::vector<SceneTensor> tensors = mixed;
  for (int i = 0; i < 1000; ++i) tensors.push_back({"small" + std::to_string(i), 64, i % 2 == 0});
  CaptureRig rig(tensors, 4096);
  std::vector<std::byte> blob(100);
  const std::vector<std::span<const std::byte>> blobs = {blob};
  std::uint64_t before = 0;
  for (std::uint64_t step = 1; step <= 5; ++step) {
    if (step == 2) before = allocations;
    CaptureRequest request = rig.request(step);
    request.blobs = blobs;
    const bool is_begun = rig.snapshotter.begin(request).has_value();
    const bool is_guarded = rig.snapshotter.guard({}).has_value();
    const bool is_idle = rig.snapshotter.wait_idle(soon()).has_value();
    if (!is_begun || !is_guarded || !is_idle) FAIL("the capture did not end");
  }
  const std::uint64_t after = allocations;
  REQUIRE(after == before);
}

namespace {

// A device whose copies never end in time: its fence fails, and it ends when the test ends it.
class StuckDevice final : public device::Device {
 public:
  class Run final : public device::CopyRun {
   public:
    explicit Run(device::CopyListener& listener) : listener_(listener) {}
    ~Run() override { end(); }
    Status start(const device::CopyStart&) override {
      is_running_ = true;
      return {};
    }
    Status fence(Stream) override {
      return is_running_ ? Status(fail(Errc::unavailable, "stuck")) : Status();
    }
    Status wait_idle(device::Deadline) override { return {}; }
    std::span<const Crc32> checksums() const override { return {}; }
    void end() {
      if (std::exchange(is_running_, false)) listener_.run_ended({});
    }

   private:
    device::CopyListener& listener_;
    bool is_running_ = false;
  };

  bool has_checksums() const override { return false; }
  std::unique_ptr<device::CopyRun> make_run(device::CopyList,
                                            device::CopyListener& listener) override {
    auto run = std::make_unique<Run>(listener);
    newest = run.get();
    return run;
  }
  Status copy_in(std::byte*, std::span<const std::byte>) override { return {}; }
  Status settle(device::Deadline) override { return {}; }
  Run* newest = nullptr;
};

}  // namespace

TEST_CASE("snapshotter: copies that end after the guard gave up are not published",
          "[unit][snapshot]") {
  Scene scene({{"a", 100, true}, {"b", 100, false}});
  for (std::size_t i = 0; i < 2; ++i) scene.sources[i].device = scene.sources[i].is_guarded ? 1 : 0;
  device::CopyThreads threads(1);
  device::HostDevice host(threads);
  StuckDevice stuck;
  const std::vector<device::Device*> devices = {&host, &stuck};
  Ended ended;
  Snapshotter snapshotter({scene.layout, scene.sources, scene.header, devices, capture_chunk},
                          ended);
  CaptureRequest request;
  request.step = Step{1};
  request.slot = scene.slot;
  REQUIRE(snapshotter.begin(request));
  const Status guarded = snapshotter.guard({});
  REQUIRE_FALSE(guarded);
  REQUIRE(guarded.error().code() == Errc::unavailable);
  REQUIRE(snapshotter.is_running());
  stuck.newest->end();
  REQUIRE(ended.endings == 1);
  REQUIRE_FALSE(ended.is_good);
  REQUIRE(ended.error->code() == Errc::unavailable);

  // The next capture is judged by itself.
  request.step = Step{2};
  REQUIRE(snapshotter.begin(request));
  stuck.newest->end();
  REQUIRE(snapshotter.guard({}));
  REQUIRE(ended.endings == 2);
  REQUIRE(ended.is_good);
}

TEST_CASE("snapshotter: a device without checksums leaves all of them to the engine",
          "[unit][snapshot]") {
  Scene scene({{"a", 100, true}, {"b", 100, false}});
  scene.sources[0].device = 1;
  device::CopyThreads threads(1);
  device::HostDevice host(threads);
  StuckDevice other;
  const std::vector<device::Device*> devices = {&host, &other};
  Ended ended;
  Snapshotter snapshotter({scene.layout, scene.sources, scene.header, devices, capture_chunk},
                          ended);
  CaptureRequest request;
  request.step = Step{1};
  request.slot = scene.slot;
  const Status begun = snapshotter.begin(request);
  REQUIRE(other.newest != nullptr);
  other.newest->end();
  REQUIRE(snapshotter.wait_idle(soon()));
  REQUIRE(ended.endings == 1);
  REQUIRE(ended.is_good == begun.has_value());
  REQUIRE(ended.chunk_crcs.empty());
}

}  // namespace ckpt::snapshot
