// The cost of a small save for the training thread: the whole public path, with its own daemon.
#include <chrono>
#include <ckpt/checkpointer.hpp>
#include <cstdio>
#include <cstdlib>
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
  harness.sample({"B5 p50", "save() of 1 MiB", 0.2, 1, Better::lower, "ms"}, 0.5, samples);
  harness.sample({"B5 p99", "save() of 1 MiB", 1, 5, Better::lower, "ms"}, 0.99, samples);
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::Log::set_level(ckpt::LogLevel::error);
  bench::Harness harness("save", argc, argv);
  sample_small_saves(harness);
  return harness.finish();
}
