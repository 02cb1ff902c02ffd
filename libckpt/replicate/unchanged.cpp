#include "replicate/unchanged.hpp"

#include <algorithm>
#include <cstring>

#include "base/assert.hpp"

namespace ckpt::replicate {

namespace {

// The two may lie in segments of other sizes.
bool are_equal(const std::vector<os::FileSpan>& left, const std::vector<os::FileSpan>& right) {
  std::size_t at_left = 0;
  std::size_t at_right = 0;
  std::span<const std::byte> a;
  std::span<const std::byte> b;
  for (;;) {
    while (a.empty() && at_left < left.size()) a = left[at_left++].bytes;
    while (b.empty() && at_right < right.size()) b = right[at_right++].bytes;
    if (a.empty() || b.empty()) return a.empty() && b.empty();
    const std::size_t bytes = std::min(a.size(), b.size());
    if (std::memcmp(a.data(), b.data(), bytes) != 0) return false;
    a = a.subspan(bytes);
    b = b.subspan(bytes);
  }
}

}  // namespace

bool may_be_same(const format::ShardRecord& record, const format::ShardRecord& base,
                 std::size_t chunk) {
  CKPT_ASSERT(chunk < record.chunk_crcs.size());
  return record.chunk_bytes == base.chunk_bytes && chunk < base.chunk_crcs.size() &&
         record.chunk(chunk) == base.chunk(chunk) &&
         record.chunk_crcs[chunk] == base.chunk_crcs[chunk];
}

Task<bool> is_same(Compute* compute, SealedShard source, SealedShard base, std::size_t chunk) {
  const auto ours = parts_of(source, chunk);
  const auto theirs = parts_of(base, chunk);
  bool is_equal = false;
  std::function<void()> compare = [&] { is_equal = are_equal(ours, theirs); };
  CKPT_CO_CHECK(co_await run_on(compute, std::move(compare)));
  co_return is_equal;
}

Task<bool> copy_same(Compute* compute, SealedShard base, std::size_t chunk,
                     std::span<std::byte> target, Crc32 expected) {
  const auto parts = parts_of(base, chunk);
  CKPT_ASSERT(target.size() == base.record->chunk(chunk).bytes);
  Crc32 crc = 0;
  std::function<void()> copy = [&] {
    std::size_t at = 0;
    for (const os::FileSpan& part : parts) {
      crc = crc32_copy(target.subspan(at, part.bytes.size()), part.bytes, crc);
      at += part.bytes.size();
    }
  };
  CKPT_CO_CHECK(co_await run_on(compute, std::move(copy)));
  co_return crc == expected;
}

}  // namespace ckpt::replicate
