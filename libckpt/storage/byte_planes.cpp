#include "storage/byte_planes.hpp"

#include <array>
#include <cstring>

#include "base/assert.hpp"

namespace ckpt::storage {

namespace {

// The width is a constant, so that the inner loop becomes a few shuffles.
template <std::size_t width>
void split_words(const std::byte* source, std::size_t count, std::byte* target) {
  for (std::size_t index = 0; index < count; ++index)
    for (std::size_t plane = 0; plane < width; ++plane)
      target[plane * count + index] = source[index * width + plane];
}

template <std::size_t width>
void join(const std::byte* source, std::size_t count, std::byte* target) {
  for (std::size_t index = 0; index < count; ++index)
    for (std::size_t plane = 0; plane < width; ++plane)
      target[index * width + plane] = source[plane * count + index];
}

using Move = void (*)(const std::byte* source, std::size_t count, std::byte* target);

void move_planes(std::span<const std::byte> source, std::uint8_t width, std::span<std::byte> target,
                 const std::array<Move, 3>& moves) {
  CKPT_ASSERT(source.size() == target.size());
  CKPT_ASSERT(width == 1 || width == 2 || width == 4 || width == 8);
  const std::size_t count = source.size() / width;
  const std::size_t whole = width == 1 ? 0 : count * width;
  if (width == 2) moves[0](source.data(), count, target.data());
  if (width == 4) moves[1](source.data(), count, target.data());
  if (width == 8) moves[2](source.data(), count, target.data());
  if (whole < source.size())
    std::memcpy(target.data() + whole, source.data() + whole, source.size() - whole);
}

}  // namespace

void split_planes(std::span<const std::byte> source, std::uint8_t width,
                  std::span<std::byte> target) {
  move_planes(source, width, target, {split_words<2>, split_words<4>, split_words<8>});
}

void join_planes(std::span<const std::byte> source, std::uint8_t width,
                 std::span<std::byte> target) {
  move_planes(source, width, target, {join<2>, join<4>, join<8>});
}

}  // namespace ckpt::storage
