// A mutant of the capture's code: it must be caught, by wrong bytes or by a complaint of the
// stand-in.
#include <fmt/format.h>

#include <unistd.h>
#include <csignal>
#include <cstdlib>

#include "capture/capture_world.hpp"

namespace ckpt::test {
namespace {

constexpr std::uint64_t mutant_seeds = 60;

[[noreturn]] void caught(const char* how) {
  fmt::print("caught: {}\n", how);
  std::fflush(stdout);
  ::_exit(0);
}

// An assertion of the library has caught it.
void on_abort(int) {
  caught("an assertion");
}

}  // namespace
}  // namespace ckpt::test

int main() {
  using namespace ckpt::test;
  std::signal(SIGABRT, on_abort);
  for (std::uint64_t seed = 1; seed <= mutant_seeds; ++seed) {
    for (const bool is_pinned : {true, false}) {
      WorldOptions options;
      options.seed = seed;
      options.is_pinned = is_pinned;
      options.words = fmt::format("seed={}", seed);
      CaptureWorld world(options);
      (void)world.run(5);
      const std::string findings = world.findings();
      if (!findings.empty()) caught(findings.c_str());
    }
  }
  fmt::print("not caught by {} seeds\n", mutant_seeds);
  return 1;
}
