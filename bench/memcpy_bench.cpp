// memcpy alone: the machine's limit, and the reason why Slots are touched once, at the start.
#include <sys/mman.h>

#include <cstring>
#include <thread>
#include <vector>

#include "bench/harness.hpp"

namespace {

void copy_in_threads(std::byte* target, const std::byte* source, std::size_t bytes, int threads) {
  std::vector<std::thread> workers;
  const std::size_t share = bytes / static_cast<std::size_t>(threads);
  for (int index = 0; index < threads; ++index) {
    const std::size_t at = share * static_cast<std::size_t>(index);
    workers.emplace_back([=] { std::memcpy(target + at, source + at, share); });
  }
  for (std::thread& worker : workers) worker.join();
  bench::use(target);
}

}  // namespace

int main(int argc, char** argv) {
  bench::Harness harness("memcpy", argc, argv);
  const std::size_t bytes = harness.bytes();
  const auto amount = static_cast<double>(bytes);
  std::vector<std::byte> source(bytes, std::byte{0x5a}), target(bytes);

  const auto copy = [&](int threads) {
    return bench::rate(amount,
                       [&] { copy_in_threads(target.data(), source.data(), bytes, threads); });
  };
  const auto one = [&] { return copy(1); };
  const auto two = [&] { return copy(2); };
  const auto fresh = [&] {
    void* pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return 0.0;
    const double speed = bench::rate(
        amount, [&] { copy_in_threads(static_cast<std::byte*>(pages), source.data(), bytes, 1); });
    ::munmap(pages, bytes);
    return speed;
  };

  harness.compare({"K4", "memcpy, two threads / one"}, two, one);
  harness.compare({"K5", "memcpy into fresh shared memory / into touched"}, fresh, one);
  return harness.finish();
}
