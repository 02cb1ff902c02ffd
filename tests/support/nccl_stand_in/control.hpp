// NcclControl: a test's calls to the stand-in for NCCL, beside NCCL's own functions.
//
// Found as the C symbol `nccl_stand_in` of the library, so that a test links nothing of it.
#pragma once

#include <cstdint>

namespace ckpt::test {

struct NcclCounts {
  std::uint64_t calls = 0;
  std::uint64_t joins = 0;
  std::uint64_t broadcasts = 0;
  std::uint64_t aborts = 0;
  std::uint64_t destroys = 0;
  std::uint64_t blocked = 0;  // Calls that did not return, or did after let_go().
  std::uint64_t live = 0;     // Communicators that are neither destroyed nor aborted.
};

struct NcclControl {
  // Everything new; the words are those of NcclSettings in stand_in.cpp, as in "rank=1
  // fail=ncclBroadcast nth=2 error=3". False: an unknown word.
  bool (*reset)(const char* words);
  NcclCounts (*counts)();
  // Calls that NCCL leaves undefined, one line each; empty: none.
  const char* (*violations)();
  // The call that was to block returns.
  void (*let_go)();
};

}  // namespace ckpt::test
