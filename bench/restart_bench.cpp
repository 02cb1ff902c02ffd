// From the death of a trainer to a new process that has its whole state again, verified.
//
// The clock runs from kill -9 until the new process says that restore() returned: its start, the
// proof that the old one is gone, the mapping of the Slots, and the first touch of its tensors.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <unistd.h>

#include "base/log.hpp"
#include "bench/daemons.hpp"
#include "bench/harness.hpp"
#include "bench/must.hpp"
#include "bench/trainer.hpp"

namespace {

void say(const char* text) {
  std::puts(text);
  std::fflush(stdout);
}

// The child: restores or starts fresh, then waits to be killed.
int train(const std::string& runtime_dir, std::size_t bytes) {
  ckpt::Options options;
  options.job = "bench-restart";
  options.runtime_dir = runtime_dir;
  bench::Trainer trainer(bytes);
  trainer.open(options);
  if (const auto restored = trainer.restore()) {
    say(restored->source == ckpt::RestoreSource::own_memory ? "restored" : "from elsewhere");
    bench::must(trainer.checkpointer().restored_ok(restored->step));  // The clock has stopped.
    say(trainer.is_filled() ? "intact" : "not what was saved");
  } else {
    trainer.fill();
    trainer.save(ckpt::Level::committed);
    say("saved");
  }
  for (;;) ::pause();
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::Log::set_level(ckpt::LogLevel::error);
  if (argc == 4 && std::string(argv[1]) == "trainer")
    return train(argv[2], std::strtoull(argv[3], nullptr, 10));

  bench::Harness harness("restart", argc, argv);
  const bench::Daemon daemon(harness.disk_directory() + "/restart");
  const bench::Command command = {bench::own_path(), "trainer", daemon.runtime_dir(),
                                  std::to_string(harness.bytes())};
  bench::Process trainer = bench::Process::start(command);
  if (trainer.read_line() != "saved") bench::give_up("the first trainer found a step");
  std::vector<double> seconds;
  while (seconds.size() < harness.pairs()) {
    const auto begin = std::chrono::steady_clock::now();
    trainer.kill(SIGKILL);
    bench::Process next = bench::Process::start(command);
    if (next.read_line() != "restored") bench::give_up("the state came from elsewhere");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    seconds.push_back(took.count());
    if (next.read_line() != "intact") bench::give_up("the state is not what was saved");
    trainer = std::move(next);
  }
  harness.sample(
      {"B16", "kill -9 to verified state in a new process", 0.4, 0.8, bench::Better::lower, "s"},
      0.5, seconds);
  return harness.finish();
}
