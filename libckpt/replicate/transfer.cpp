#include "replicate/transfer.hpp"

#include <algorithm>

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

Task<void> Destination::placed(std::size_t index, std::vector<Crc32> crcs) const {
  if (placed_) CKPT_CO_CHECK(co_await placed_(index, std::move(crcs)));
  co_return Status();
}

std::vector<os::FileSpan> parts_of(const SealedShard& source, std::size_t chunk) {
  const format::Extent extent = source.record->chunk(chunk);
  std::vector<os::FileSpan> parts;
  std::uint64_t begin = 0;
  for (const os::FileSpan& span : source.spans) {
    const std::uint64_t end = begin + span.bytes.size();
    const std::uint64_t from = std::max(begin, extent.offset);
    const std::uint64_t to = std::min(end, extent.end());
    for (std::uint64_t at = from; at < to; at += piece_bytes) {
      os::FileSpan part;
      part.bytes = span.bytes.subspan(at - begin, std::min<std::uint64_t>(piece_bytes, to - at));
      part.fd = span.fd;
      part.offset = span.offset + (at - begin);
      parts.push_back(part);
    }
    begin = end;
  }
  return parts;
}

std::vector<std::byte> encode(const CopyName& name) {
  format::Writer writer;
  writer.u64(name.shard.at.timeline);
  writer.u64(number(name.shard.at.step));
  writer.u32(name.shard.rank);
  writer.digest(name.digest);
  return writer.take();
}

Result<CopyName> decode_copy_name(std::span<const std::byte> bytes) {
  format::Reader reader(bytes, "name of a copy");
  CopyName name;
  name.shard.at.timeline = reader.u64();
  name.shard.at.step = Step{reader.u64()};
  name.shard.rank = reader.u32();
  name.digest = reader.digest();
  CKPT_CHECK(reader.finish());
  return name;
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
