// Captures of host tensors against memcpy with the same threads.
#include <cstdlib>
#include <string>

#include "bench/capture_state.hpp"
#include "bench/harness.hpp"

namespace {

void compare_with_memcpy(bench::Harness& harness, const std::string& what, std::size_t tensor_bytes,
                         bool is_judged) {
  bench::CaptureState state(harness.bytes(), tensor_bytes);
  const auto amount = static_cast<double>(state.memory.size());
  std::uint64_t step = 0;
  const auto capture = [&](bool with_checksums) {
    return bench::rate(amount, [&] {
      if (!state.capture(++step, with_checksums)) std::abort();
      bench::use(state.slot.data());
    });
  };
  const auto with = [&] { return capture(true); };
  const auto without = [&] { return capture(false); };
  const auto copy = [&] {
    return bench::rate(amount, [&] {
      bench::copy_in_threads(state.slot.data(), state.memory.data(), state.memory.size());
      bench::use(state.slot.data());
    });
  };
  const std::string suffix = is_judged ? "" : " small";
  harness.compare({"B1" + suffix, what + ", checksum on / memcpy", 1.1, is_judged ? 0.95 : 0.0},
                  with, copy);
  harness.compare(
      {"B1b" + suffix, what + ", checksum deferred / memcpy", 1.2, is_judged ? 1.0 : 0.0}, without,
      copy);
}

}  // namespace

int main(int argc, char** argv) {
  bench::Harness harness("snapshot", argc, argv);
  compare_with_memcpy(harness, "capture of 16 MiB tensors", 16 * ckpt::MiB, true);
  compare_with_memcpy(harness, "capture of 4 KiB tensors", 4 * ckpt::KiB, false);
  return harness.finish();
}
