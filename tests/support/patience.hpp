// Patience: how long a test waits for what must come by itself. Only a hang reaches its end.
#pragma once

#include <chrono>
#include <thread>

namespace ckpt::test {

inline constexpr std::chrono::seconds patience{30};

inline std::chrono::steady_clock::time_point soon() {
  return std::chrono::steady_clock::now() + patience;
}

// For what another thread or process does by itself. False: it does not.
template <class Claim>
bool comes_true(Claim claim) {
  const auto last = soon();
  while (!claim() && std::chrono::steady_clock::now() < last) std::this_thread::yield();
  return claim();
}

}  // namespace ckpt::test
