// Random: a small seeded generator whose sequence is the same on every machine (SplitMix64).
#pragma once

#include <cstdint>

namespace ckpt {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
  }
  // 0 <= result < bound; bound > 0. The bias is below 2^-32 for the bounds we use.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  bool one_in(std::uint64_t odds) { return below(odds) == 0; }
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

// A random number from the kernel, for identities and nonces. Never use it for a decision that a
// simulation repeats.
std::uint64_t random_from_system();

}  // namespace ckpt
