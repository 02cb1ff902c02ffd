#include "base/streaming_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/assert.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ckpt {

#if defined(__SSE2__)

namespace {

constexpr std::size_t line_bytes = 64;

// Copies whole cache lines; `target` must be aligned to one.
void stream_lines(std::byte* target, const std::byte* source, std::size_t lines) {
  for (; lines > 0; --lines, target += line_bytes, source += line_bytes) {
    const auto* from = reinterpret_cast<const __m128i*>(source);
    auto* to = reinterpret_cast<__m128i*>(target);
    const __m128i first = _mm_loadu_si128(from);
    const __m128i second = _mm_loadu_si128(from + 1);
    const __m128i third = _mm_loadu_si128(from + 2);
    const __m128i fourth = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, first);
    _mm_stream_si128(to + 1, second);
    _mm_stream_si128(to + 2, third);
    _mm_stream_si128(to + 3, fourth);
  }
}

}  // namespace

void streaming_copy(std::span<std::byte> target, std::span<const std::byte> source) {
  CKPT_ASSERT(target.size() == source.size());
  if (source.empty()) return;
  const std::size_t past_line = reinterpret_cast<std::uintptr_t>(target.data()) % line_bytes;
  const std::size_t head = std::min(past_line == 0 ? 0 : line_bytes - past_line, source.size());
  std::memcpy(target.data(), source.data(), head);
  const std::size_t lines = (source.size() - head) / line_bytes;
  stream_lines(target.data() + head, source.data() + head, lines);
  const std::size_t done = head + lines * line_bytes;
  std::memcpy(target.data() + done, source.data() + done, source.size() - done);
}

void streaming_copies_done() {
  _mm_sfence();
}

#else

void streaming_copy(std::span<std::byte> target, std::span<const std::byte> source) {
  CKPT_ASSERT(target.size() == source.size());
  if (!source.empty()) std::memcpy(target.data(), source.data(), source.size());
}

void streaming_copies_done() {}

#endif

}  // namespace ckpt
