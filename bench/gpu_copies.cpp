// Captures against the rate of the link: large tensors, many, and small ones.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "bench/gpu_parts.hpp"

namespace bench {

namespace {

using ckpt::GiB;
using ckpt::KiB;
using ckpt::MiB;
using ckpt::test::GpuTrainer;

double capture_rate(GpuState& state) {
  return rate(static_cast<double>(state.bytes), [&] {
    state.begin();
    state.end();
  });
}

// Load: the daemon's work on the Slots of earlier captures. One thread hashes, and one writes past
// the page cache if the directory supports that.
class Load {
 public:
  Load(const std::string& directory, std::span<const std::byte> slot) : slot_(slot) {
    std::error_code ignored;
    std::filesystem::create_directories(directory, ignored);
    path_ = directory + "/gpu_bench." + std::to_string(::getpid());
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0600);
    if (fd_ >= 0) writer_ = std::thread([this] { write(); });
    hashes_ = std::thread([this] { hash(); });
  }
  ~Load() {
    is_over_ = true;
    hashes_.join();
    if (writer_.joinable()) writer_.join();
    if (fd_ >= 0) ::close(fd_);
    ::unlink(path_.c_str());
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  bool writes() const { return fd_ >= 0; }

 private:
  static constexpr std::size_t block = 4 * MiB;
  static constexpr std::size_t file_bytes = 256 * MiB;  // Written over and over.

  void hash() {
    while (!is_over_)
      for (std::size_t at = 0; at + block <= slot_.size() && !is_over_; at += block)
        sum_ = ckpt::crc32(slot_.subspan(at, block));
  }
  void write() {
    for (std::size_t at = 0; !is_over_ && slot_.size() >= block; at = (at + block) % file_bytes)
      if (::pwrite(fd_, slot_.data(), block, static_cast<off_t>(at)) < 0) return;
  }

  const std::span<const std::byte> slot_;
  std::string path_;
  int fd_ = -1;
  std::atomic<bool> is_over_{false};
  ckpt::Crc32 sum_{};
  std::thread hashes_, writer_;
};

void measure_large(Harness& harness, GpuTrainer& trainer, Raw& raw) {
  const auto peak = [&] { return raw.to_host(); };
  GpuState flat(trainer, std::vector<std::size_t>(
                             std::max<std::size_t>(harness.bytes() / (64 * MiB), 1), 64 * MiB));
  harness.compare(
      {"G1", "capture of flat 64 MiB tensors / raw copy", 0.97, 0.92},
      [&] { return capture_rate(flat); }, peak);
  const PinnedMemory before(flat.pins(), std::min<std::size_t>(harness.bytes(), GiB));
  bool has_written = false;
  const auto under_load = [&] {
    const Load load(harness.directory(), before.bytes());
    has_written = load.writes();
    return capture_rate(flat);
  };
  harness.compare({"G10", "capture while others hash and write / alone", 0.92, 0.85}, under_load,
                  [&] { return capture_rate(flat); });
  if (!has_written) harness.add_condition("G10 without a writer: the directory takes none");
}

void measure_many(Harness& harness, GpuTrainer& trainer, Raw& raw) {
  const auto measure = [&](const Bar& bar, const std::vector<std::size_t>& sizes) {
    GpuState model(trainer, sizes);
    harness.compare(bar, [&] { return capture_rate(model); }, [&] { return raw.to_host(); });
  };
  measure({"G2", "capture of a model's tensors / raw copy", 0.93, 0.85},
          sizes_like_a_model(harness.bytes()));
  // As Adam has them for a model of some hundred parameters: each with two moments.
  for (const std::size_t count : {1000, 3000})
    measure({fmt::format("G2 {}", count), fmt::format("capture of {} tensors / raw copy", count),
             0.93, 0.85},
            sizes_of_many(harness.bytes(), count));
}

void measure_small(Harness& harness, GpuTrainer& trainer, Raw& raw) {
  const std::size_t count = std::min<std::size_t>(20'000, harness.bytes() / (32 * KiB));
  GpuState small(trainer, std::vector<std::size_t>(count, 32 * KiB));
  harness.compare(
      {"G3", fmt::format("capture of {} tensors of 32 KiB / raw copy", count), 0.60, 0.35},
      [&] { return capture_rate(small); }, [&] { return raw.to_host(); });
  const auto one_by_one = [&] {
    return rate(static_cast<double>(small.bytes), [&] {
      for (std::size_t i = 0; i < small.places.size(); ++i) {
        check(trainer.driver().copy_to_host(small.slot->bytes().data() + i * 32 * KiB,
                                            on_gpu(small.places[i]), 32 * KiB, raw.stream()));
        trainer.spin();
      }
    });
  };
  harness.compare(
      {"G3b", "the same / one copy and one wait for each", 3.0, 1.5},
      [&] { return capture_rate(small); }, one_by_one);
}

// The kernel for small tensors against the copy engine: from which size on it is no faster.
void measure_gather(Harness& harness, GpuTrainer& trainer) {
  constexpr std::size_t count_max = 4000;
  for (const std::size_t bytes : {256ul, 4 * KiB, 16 * KiB, 32 * KiB, 60 * KiB}) {
    const std::size_t count = std::clamp<std::size_t>(harness.bytes() / bytes, 64, count_max);
    ckpt::device::GpuOptions options = as_in_a_trainer();
    options.gather = ckpt::GpuGather::off;
    GpuState engine(trainer, std::vector<std::size_t>(count, bytes), options);
    options.gather = ckpt::GpuGather::on;
    GpuState kernel(trainer, std::vector<std::size_t>(count, bytes), options);
    harness.compare(
        {.id = fmt::format("G3k {}", bytes),
         .what = fmt::format("{} tensors of {} bytes: gpu_gather=on / off", count, bytes),
         .excellent = 1.5,
         .floor = 1.0,
         .is_judged = false},
        [&] { return capture_rate(kernel); }, [&] { return capture_rate(engine); });
  }
}

}  // namespace

std::vector<std::size_t> sizes_like_a_model(std::size_t bytes) {
  // Like a transformer's layer: norms, biases, projections, and now and then an embedding.
  constexpr std::size_t layer[] = {16 * KiB, 16 * KiB,  48 * KiB,  96 * MiB, 32 * MiB,
                                   64 * KiB, 128 * MiB, 128 * MiB, 16 * KiB, 2 * MiB};
  std::vector<std::size_t> sizes;
  for (std::size_t total = 0, i = 0; total < bytes; ++i) {
    sizes.push_back(std::min(layer[i % std::size(layer)], std::max(bytes / 4, 4 * KiB)));
    total += sizes.back();
  }
  return sizes;
}

std::vector<std::size_t> sizes_of_many(std::size_t bytes, std::size_t count) {
  // Two thirds are norms and biases; the others share what is left.
  constexpr std::size_t small_bytes = 16 * KiB;
  const std::size_t small_count = count * 2 / 3;
  const std::size_t left = bytes - std::min(bytes / 2, small_count * small_bytes);
  std::vector<std::size_t> sizes(count, small_bytes);
  const std::size_t large = left / (count - small_count) / (4 * KiB) * (4 * KiB);
  for (std::size_t i = 0; i < count; i += 3) sizes[i] = std::max(large, 4 * KiB);
  return sizes;
}

void measure_copies(Harness& harness, GpuTrainer& trainer) {
  Raw raw(trainer, std::min<std::size_t>(GiB, harness.bytes()));
  fmt::print("raw: {:.1f} GB/s to the host, {:.1f} GB/s to the GPU\n", raw.to_host() / 1e9,
             raw.to_device() / 1e9);
  measure_large(harness, trainer, raw);
  measure_many(harness, trainer, raw);
  measure_small(harness, trainer, raw);
  measure_gather(harness, trainer);
}

}  // namespace bench
