// Fuzz: the common part of all targets of this suite. A target defines `fuzz_one` and nothing else.
//
// A parser must end with a value or an error for any bytes. A value that it accepts must be worth
// what its bytes say: written again, it gives them back. A broken promise ends the program, which
// is what the fuzzer looks for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "base/checksum.hpp"

namespace ckpt::fuzz {

using Bytes = std::span<const std::byte>;

// Defined by the target.
void fuzz_one(Bytes input);

inline std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Records end with a CRC, which a fuzzer cannot guess: the input with the right one.
inline std::vector<std::byte> with_crc(Bytes record) {
  std::vector<std::byte> sealed(record.begin(), record.end());
  if (sealed.size() < sizeof(Crc32)) return sealed;
  const Crc32 crc = crc32(record.first(record.size() - sizeof(Crc32)));
  std::memcpy(sealed.data() + sealed.size() - sizeof crc, &crc, sizeof crc);
  return sealed;
}

inline void promise(bool kept, const char* what) {
  if (kept) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

}  // namespace ckpt::fuzz
