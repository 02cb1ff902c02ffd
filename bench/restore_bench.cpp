// Restores from memory against memcpy with the same threads: every byte verified before it is used.
#include <cstdlib>

#include "bench/capture_state.hpp"
#include "bench/harness.hpp"
#include "snapshot/restorer.hpp"

int main(int argc, char** argv) {
  using namespace ckpt;
  bench::Harness harness("restore", argc, argv);
  bench::CaptureState state(harness.bytes(), 16 * MiB);
  if (!state.capture(1, true)) return 1;
  const auto amount = static_cast<double>(state.memory.size());

  const auto restore = [&] {
    return bench::rate(amount, [&] {
      const auto plan = snapshot::plan_restore(state.record, state.targets);
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
      if (!plan || !snapshot::restore_tensors(state.record, state.slot, *plan,
                                              {state.devices, state.threads, deadline}))
        std::abort();
      bench::use(state.memory.data());
    });
  };
  const auto copy = [&] {
    return bench::rate(amount, [&] {
      bench::copy_in_threads(state.memory.data(), state.slot.data(), state.memory.size());
      bench::use(state.memory.data());
    });
  };
  harness.compare({"B13", "restore from memory, verified / memcpy", 0.95, 0.80}, restore, copy);
  return harness.finish();
}
