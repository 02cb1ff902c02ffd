// Goal:   no table of frames, and no frame, makes a reader touch what is not its Chunk's.
// Method: the first bytes choose a shape of the file; the others are its table, sealed as they are,
//         and then a frame, which is opened into memory of one size.
#include <algorithm>

#include "base/units.hpp"
#include "format/frame_table.hpp"
#include "fuzz.hpp"
#include "storage/frame_codec.hpp"

namespace ckpt::fuzz {

namespace {

constexpr std::size_t shape_bytes = 4;

void read_table(Bytes shape_input, Bytes input) {
  const auto byte = [&](std::size_t index) {
    return static_cast<std::uint64_t>(shape_input[index]);
  };
  format::PackedShape shape;
  shape.chunk_bytes = page_bytes << (byte(0) % 4);
  shape.member = {(byte(1) % 16) * page_bytes, byte(2) * 1000 + byte(3)};
  const std::vector<std::byte> table = with_crc(input);
  const std::uint64_t file_bytes = shape.file_bytes_max();
  if (file_bytes < table.size()) return;
  const format::TableSeal seal{table.size(), digest_of(std::span<const std::byte>(table))};
  const auto frames = format::decode_frame_table(table, seal, shape, file_bytes);
  if (!frames) return;
  promise(frames->size() == shape.frame_count(), "each Chunk has a frame");
  promise(std::ranges::equal(format::encode(*frames), table), "a table is kept to the byte");
  for (std::size_t index = 0; index < frames->size(); ++index) {
    const format::Frame& frame = (*frames)[index];
    promise(frame.bytes <= shape.plain(index).bytes, "no frame is larger than its Chunk");
    promise(frame.offset + frame.bytes <= file_bytes - table.size(), "a frame is before the table");
  }
}

void open_frame(Bytes frame, std::uint8_t width) {
  constexpr std::size_t plain_bytes = 3 * page_bytes;
  std::vector<std::byte> memory(plain_bytes + 1, std::byte{0xee});
  (void)storage::unpack_frame(frame, width, std::span(memory).first(plain_bytes));
  promise(memory.back() == std::byte{0xee}, "nothing is written behind the Chunk");
}

}  // namespace

void fuzz_one(Bytes input) {
  if (input.size() < shape_bytes) return;
  read_table(input.first(shape_bytes), input.subspan(shape_bytes));
  const auto width = static_cast<std::uint8_t>(1u << (static_cast<unsigned>(input[0]) % 4));
  open_frame(input.subspan(shape_bytes), width);
}

}  // namespace ckpt::fuzz
