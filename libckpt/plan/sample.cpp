#include "plan/sample.hpp"

#include <algorithm>

#include "base/assert.hpp"
#include "base/random.hpp"
#include "plan/region.hpp"

namespace ckpt::plan {

std::optional<Sample> sample_of(const SampledTensor& tensor, std::uint64_t step) {
  CKPT_ASSERT(tensor.bytes > 0);
  CKPT_ASSERT(tensor.parts > 0);
  const std::uint64_t windows =
      std::clamp<std::uint64_t>(tensor.bytes / sample_bytes_min, 1, tensor.parts);
  const std::uint64_t turns = tensor.parts / windows;  // One of them has a window.
  const std::uint64_t places = windows * turns;
  const std::uint64_t position = Random(step).next() >> 32;  // As a fraction of 2^32.
  const std::uint64_t place = ((position * places >> 32) + tensor.spread % places) % places;
  if (place % turns != 0) return std::nullopt;
  const std::uint64_t window = place / turns;
  const std::uint64_t begin = cut(tensor.bytes, window, windows);
  return Sample{begin, cut(tensor.bytes, window + 1, windows) - begin};
}

}  // namespace ckpt::plan
