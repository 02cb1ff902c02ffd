#include "replicate/transfer.hpp"

#include "base/assert.hpp"
#include "format/codec.hpp"

namespace ckpt::replicate {

Destination::Places Destination::places(std::size_t index, format::Extent extent) const {
  if (!places_) return {shard_.subspan(extent.offset, extent.bytes)};
  Places places = places_(index);
  std::uint64_t bytes = 0;
  for (const std::span<std::byte> place : places) bytes += place.size();
  CKPT_ASSERT(bytes == extent.bytes);
  return places;
}

bool ChunkSet::insert(std::size_t index) {
  CKPT_ASSERT(index < bits_.size());
  if (bits_[index]) return false;
  bits_[index] = true;
  ++count_;
  return true;
}

std::vector<std::byte> ChunkSet::encode() const {
  format::Writer writer;
  writer.count(bits_.size());
  for (std::size_t first = 0; first < bits_.size(); first += 8) {
    unsigned packed = 0;
    for (std::size_t bit = 0; bit < 8 && first + bit < bits_.size(); ++bit)
      if (bits_[first + bit]) packed |= 1u << bit;
    writer.u8(static_cast<std::uint8_t>(packed));
  }
  return writer.take();
}

Result<ChunkSet> ChunkSet::decode(std::span<const std::byte> bytes, std::size_t size) {
  format::Reader reader(bytes, "chunk bitmap");
  if (reader.u32() != size) reader.fail_here("it is of another number of chunks");
  const auto packed = reader.raw(div_ceil(size, 8));
  CKPT_CHECK(reader.finish());
  ChunkSet set(size);
  for (std::size_t index = 0; index < packed.size() * 8; ++index) {
    if (((std::to_integer<unsigned>(packed[index / 8]) >> (index % 8)) & 1u) == 0) continue;
    if (index >= size)
      return fail(Errc::corruption, "read chunk bitmap: it names a chunk that the shard lacks");
    set.insert(index);
  }
  return set;
}

}  // namespace ckpt::replicate
