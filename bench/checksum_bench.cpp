// Checksums against memcpy, one thread: the price of verifying a capture of host tensors.
#include <cstring>
#include <vector>

#include "base/checksum.hpp"
#include "base/units.hpp"
#include "bench/harness.hpp"

namespace {

// By Chunks, as on every path of the library.
template <class Work>
void by_chunks(std::size_t bytes, Work work) {
  for (std::size_t at = 0; at < bytes; at += ckpt::default_chunk_bytes)
    work(at, std::min<std::size_t>(ckpt::default_chunk_bytes, bytes - at));
}

}  // namespace

int main(int argc, char** argv) {
  bench::Harness harness("checksum", argc, argv);
  const std::size_t bytes = harness.bytes();
  const auto amount = static_cast<double>(bytes);
  std::vector<std::byte> source(bytes, std::byte{0x5a}), target(bytes);
  const std::span<const std::byte> from(source);
  const std::span<std::byte> to(target);
  std::uint32_t crcs = 0;

  const auto copy = [&] {  // In one call, so that it may choose its best way.
    return bench::rate(amount, [&] {
      std::memcpy(target.data(), source.data(), bytes);
      bench::use(target.data());
    });
  };
  const auto copy_and_sum = [&] {
    return bench::rate(amount, [&] {
      by_chunks(bytes, [&](std::size_t at, std::size_t size) {
        crcs ^= ckpt::crc32_copy(to.subspan(at, size), from.subspan(at, size));
      });
    });
  };
  const auto sum = [&] {
    return bench::rate(amount, [&] {
      by_chunks(bytes, [&](std::size_t at, std::size_t size) {
        crcs ^= ckpt::crc32(from.subspan(at, size));
      });
    });
  };
  const auto digest = [&] {
    return bench::rate(amount, [&] {
      by_chunks(bytes, [&](std::size_t at, std::size_t size) {
        crcs ^= static_cast<std::uint32_t>(ckpt::digest_of(from.subspan(at, size)).low);
      });
    });
  };

  harness.compare({"K1", "crc32_copy / memcpy, the basis of B1", 0.82, 0.72}, copy_and_sum, copy);
  harness.compare({"K2", "crc32 / memcpy"}, sum, copy);
  harness.compare({"K3", "128-bit digest / memcpy"}, digest, copy);
  bench::use(&crcs);
  return harness.finish();
}
