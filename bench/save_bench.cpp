// The cost of saves to the training thread, by the whole public path, with its own daemon: a small
// one, and one of a rank that divides its state with others.
#include <algorithm>
#include <chrono>
#include <ckpt/checkpointer.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/units.hpp"
#include "bench/daemons.hpp"
#include "bench/harness.hpp"

namespace {

using std::chrono::steady_clock;

double milliseconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - start).count();
}

void sample_small_saves(bench::Harness& harness) {
  constexpr std::size_t saves = 400;
  const bench::Daemon daemon(harness.disk_directory() + "/save");
  std::vector<std::byte> tensor(ckpt::MiB);
  ckpt::Options options;
  options.job = "bench-save";
  options.runtime_dir = daemon.runtime_dir();
  options.save_mem_interval = {1, {}};
  auto opened = ckpt::Checkpointer::open(options);
  ckpt::TensorRef reference;
  reference.data = tensor.data();
  reference.shape = {static_cast<std::int64_t>(tensor.size())};
  if (!opened || !opened->add("state", reference)) {
    std::fprintf(stderr, "B5: %s\n", opened ? "add" : opened.error().message().c_str());
    std::exit(1);
  }
  std::vector<double> samples;
  for (std::uint64_t step = 1; samples.size() < saves && step < 10 * saves; ++step) {
    const auto start = steady_clock::now();
    const auto outcome = opened->save(ckpt::Step{step});
    const double took = milliseconds_since(start);
    if (!outcome || *outcome != ckpt::SaveOutcome::started) continue;
    if (step > 1) samples.push_back(took);  // The first one waits for the Slots.
    (void)opened->wait(ckpt::Step{step}, ckpt::Level::committed, std::chrono::seconds(10));
  }
  (void)opened->close();
  if (samples.empty()) std::exit(1);
  using bench::Better;
  harness.sample({"B5 p50", "save() of 1 MiB", 0.06, 0.2, Better::lower, "ms"}, 0.5, samples);
  harness.sample({"B5 p99", "save() of 1 MiB", 0.15, 1, Better::lower, "ms"}, 0.99, samples);
}

// A rank with a state of 16 MiB tensors, of which `copies` ranks hold the same.
struct CopyOptions {
  std::uint32_t copies = 0;
  std::string directory = {};  // Emptied.
  ckpt::Interval stored_every = {};
  bool compares = false;  // All of them at a save that is stored by steps, else a sample.
};

class Copy {
 public:
  Copy(const bench::Daemon& daemon, std::size_t bytes, const CopyOptions& rank) : state_(bytes) {
    const std::uint32_t copies = rank.copies;
    ckpt::Options options;
    options.job = "bench-copies-" + std::to_string(++jobs_);
    if (!rank.directory.empty()) {
      std::filesystem::remove_all(rank.directory);
      options.dir = rank.directory;
      options.save_storage_interval = rank.stored_every;
      options.max_ckpt_num = 1;
      options.compare_copies = rank.compares;
    }
    if (rank.stored_every.steps > 0) level_ = ckpt::Level::durable;
    options.runtime_dir = daemon.runtime_dir();
    auto opened = ckpt::Checkpointer::open(options);
    if (!opened) fail(opened.error());
    checkpointer_.emplace(std::move(*opened));
    constexpr std::size_t tensor_bytes = 16 * ckpt::MiB;
    for (std::size_t at = 0; at + tensor_bytes <= bytes; at += tensor_bytes) {
      ckpt::TensorRef tensor;
      tensor.data = state_.data() + at;
      tensor.shape = {static_cast<std::int64_t>(tensor_bytes)};
      tensor.piece = ckpt::Piece{{tensor_bytes}, {0}, {}, {}, 0, copies};
      const auto added = checkpointer_->add("state." + std::to_string(at), tensor);
      if (!added) fail(added.error());
    }
  }
  // States per second: how long save() holds the training thread.
  double save() {
    while (true) {
      const auto start = steady_clock::now();
      const auto outcome = checkpointer_->save(ckpt::Step{++step_});
      const double took = milliseconds_since(start) / 1000;
      if (!outcome) fail(outcome.error());
      if (*outcome != ckpt::SaveOutcome::started) continue;
      const auto waited = checkpointer_->wait(ckpt::Step{step_}, level_, std::chrono::seconds(60));
      if (!waited) fail(waited.error());
      return 1 / took;
    }
  }

 private:
  [[noreturn]] static void fail(const ckpt::Error& error) {
    std::fprintf(stderr, "B37: %s\n", error.message().c_str());
    std::exit(1);
  }
  std::vector<std::byte> state_;
  ckpt::Level level_ = ckpt::Level::committed;
  std::optional<ckpt::Checkpointer> checkpointer_;
  std::uint64_t step_ = 0;
  static inline int jobs_ = 0;
};

void compare_copies(bench::Harness& harness) {
  const bench::Daemon daemon(harness.disk_directory() + "/copies");
  const std::size_t bytes = std::min<std::size_t>(harness.bytes(), 512 * ckpt::MiB);
  {
    Copy shares(daemon, bytes, {4});
    Copy alone(daemon, bytes, {});
    harness.compare(
        {"B37", "save() of one of 4 copies / of all of the state", 3.6, 3.0},
        [&] { return shares.save(); }, [&] { return alone.save(); });
  }
  const std::string with = harness.disk_directory() + "/compared";
  const std::string without = harness.disk_directory() + "/not-compared";
  const auto compare = [&](const bench::Bar& bar, ckpt::Interval stored_every) {
    Copy compared(daemon, bytes, {4, with, stored_every, true});
    Copy others(daemon, bytes, {4, without, stored_every, false});
    harness.compare(bar, [&] { return compared.save(); }, [&] { return others.save(); });
  };
  compare({"B37 sample", "save() of one of 4 copies that compares a sample / without", 0, 0},
          {0, std::chrono::hours(24)});
  compare({"B37 all", "save() of one of 4 copies that compares all / without", 0, 0}, {1, {}});
  std::filesystem::remove_all(with);
  std::filesystem::remove_all(without);
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::Log::set_level(ckpt::LogLevel::error);
  bench::Harness harness("save", argc, argv);
  sample_small_saves(harness);
  compare_copies(harness);
  return harness.finish();
}
