// Fuzz: what each target of this suite uses. A target defines `fuzz_one` and nothing else.
//
// A parser must end with a value or an error for any bytes. A value that it accepts must be worth
// what its bytes say: written again, it gives them back. A broken promise ends the program, which
// is what the fuzzer looks for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

namespace ckpt::fuzz {

using Bytes = std::span<const std::byte>;

// Defined by the target.
void fuzz_one(Bytes input);

inline std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline void promise(bool kept, const char* what) {
  if (kept) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

}  // namespace ckpt::fuzz
