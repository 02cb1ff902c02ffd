// libFuzzer calls these, the same for each target.
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ckpt::fuzz::fuzz_one(std::as_bytes(std::span(data, size)));
  return 0;
}
