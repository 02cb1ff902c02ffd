// The memory that checkpoints cost beyond their Slots: the daemon's peak, and the trainer's memory
// beyond its tensors, divided by the Slots times the state.
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

#include "base/log.hpp"
#include "base/units.hpp"
#include "bench/daemons.hpp"
#include "bench/harness.hpp"
#include "bench/must.hpp"
#include "bench/trainer.hpp"

namespace {

constexpr std::uint32_t slots = 3;

// "VmHWM": the peak of resident memory, shared memory included.
double bytes_of(pid_t process, const std::string& field) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field + ":"))
      return std::stod(line.substr(field.size() + 1)) * static_cast<double>(ckpt::KiB);
  bench::give_up("no " + field + " of process " + std::to_string(process));
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::Log::set_level(ckpt::LogLevel::error);
  bench::Harness harness("memory", argc, argv);
  const std::string directory = harness.disk_directory();
  const bench::Daemon daemon(directory + "/memory");
  const std::string checkpoints = directory + "/checkpoints";
  std::filesystem::remove_all(checkpoints);
  bench::Trainer trainer(harness.bytes());
  trainer.fill();
  const double before = bytes_of(::getpid(), "RssAnon");

  ckpt::Options options;
  options.job = "bench-memory";
  options.dir = checkpoints;
  options.runtime_dir = daemon.runtime_dir();
  options.own_slots = slots;
  options.save_storage_interval = {3, {}};
  options.max_ckpt_num = 1;
  trainer.open(options);
  std::vector<double> samples;
  for (std::uint64_t step = 1; step <= harness.pairs(); ++step) {
    trainer.save(step % 3 == 0 ? ckpt::Level::durable : ckpt::Level::committed);
    const double used = bytes_of(daemon.pid(), "VmHWM") + bytes_of(::getpid(), "RssAnon") - before;
    samples.push_back(used / (slots * static_cast<double>(harness.bytes())));
  }
  trainer.leave();
  harness.sample(
      {"B19", "resident memory / (3 Slots x state)", 1.005, 1.02, bench::Better::lower, "x"}, 1.0,
      samples);
  const int code = harness.finish();
  std::filesystem::remove_all(checkpoints);
  return code;
}
