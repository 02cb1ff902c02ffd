#include "storage/packed_file.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "base/assert.hpp"
#include "base/units.hpp"
#include "storage/page_buffer.hpp"

namespace ckpt::storage {

namespace {

std::uint8_t width_of(DType type) {
  // Two floats.
  return static_cast<std::uint8_t>(type == DType::c64 ? 4 : size_of(type));
}

std::uint64_t bytes_of_pieces(std::span<const std::span<const std::byte>> pieces) {
  std::uint64_t bytes = 0;
  for (const auto piece : pieces) bytes += piece.size();
  return bytes;
}

}  // namespace

bool is_packed_kind(format::MemberKind kind) {
  return kind != format::MemberKind::raw;
}

std::vector<std::uint8_t> frame_widths(const format::ShardRecord& record, std::size_t member) {
  const format::PackedShape shape{format::member_extents(record)[member], record.chunk_bytes};
  // For each frame: how many of its bytes are of each width.
  std::vector<std::map<std::uint8_t, std::uint64_t>> shares(shape.frame_count());
  for (const format::TensorPlace& tensor : record.layout.tensors) {
    if (tensor.member != member || !tensor.alias_of.empty() || tensor.extent.bytes == 0) continue;
    const std::uint64_t first = tensor.extent.offset / record.chunk_bytes;
    const std::uint64_t last = (tensor.extent.end() - 1) / record.chunk_bytes;
    for (std::uint64_t chunk = first; chunk <= last; ++chunk) {
      const std::uint64_t begin = std::max(tensor.extent.offset, chunk * record.chunk_bytes);
      const std::uint64_t end = std::min(tensor.extent.end(), (chunk + 1) * record.chunk_bytes);
      shares.at(chunk - shape.first_chunk())[width_of(tensor.dtype)] += end - begin;
    }
  }
  std::vector<std::uint8_t> widths;
  for (const auto& share : shares) {
    const auto most =
        std::ranges::max_element(share, {}, [](const auto& width) { return width.second; });
    widths.push_back(most == share.end() ? std::uint8_t{1} : most->first);
  }
  return widths;
}

// --- writing ---

PackedWriter::PackedWriter(os::File& file, format::PackedShape shape,
                           std::vector<std::uint8_t> widths, Compression compression)
    : file_(file),
      shape_(shape),
      widths_(std::move(widths)),
      compression_(compression),
      frames_(shape.frame_count()),
      written_(shape.frame_count()) {
  CKPT_ASSERT(widths_.size() == frames_.size());
  CKPT_ASSERT(shape.chunk_bytes <= format::packed_chunk_bytes_max);
}

Task<void> PackedWriter::allocate() {
  return file_.allocate(shape_.file_bytes_max());
}

// Frames follow one another in the order in which they became ready.
std::uint64_t PackedWriter::take_room(std::uint64_t bytes) {
  CKPT_ASSERT(bytes % page_bytes == 0);
  const std::uint64_t offset = next_;
  next_ += bytes;
  CKPT_ASSERT(next_ + shape_.table_bytes() <= shape_.file_bytes_max());
  return offset;
}

Task<void> PackedWriter::write(std::size_t frame, std::vector<std::span<const std::byte>> pieces,
                               Crc32 crc, const TransferHooks& hooks) {
  CKPT_ASSERT(written_.at(frame).bytes == 0);
  const std::uint64_t plain_bytes = shape_.plain(frame).bytes;
  CKPT_ASSERT(bytes_of_pieces(pieces) == plain_bytes);
  PageBuffer memory(plain_bytes);
  const std::span<std::byte> room = memory.first(plain_bytes);
  const std::uint8_t width = widths_[frame];
  Crc32 packed_crc = 0;
  std::function<Result<std::uint64_t>()> pack = [&]() -> Result<std::uint64_t> {
    CKPT_TRY(const std::size_t bytes, pack_frame(pieces, width, compression_, room));
    const std::uint64_t padded = align_up(bytes, page_bytes);
    std::memset(room.data() + bytes, 0, padded - bytes);
    packed_crc = crc32(room.first(padded));
    return bytes;
  };
  CKPT_CO_TRY(const std::uint64_t packed, co_await compute_on(hooks.compute, std::move(pack)));
  if (packed == 0) {
    Status written = co_await write_as_it_is(frame, std::move(pieces), crc, hooks);
    co_return written;
  }
  const std::uint64_t padded = align_up(packed, page_bytes);
  if (hooks.before_transfer) {
    CKPT_CO_CHECK(co_await hooks.before_transfer(padded));
  }
  const std::uint64_t offset = take_room(padded);
  frames_[frame] = {offset, static_cast<std::uint32_t>(packed), width};
  written_[frame] = {offset, padded, packed_crc};
  const std::span<const std::byte> bytes = room.first(padded);
  Status written = co_await file_.write_at(offset, bytes);
  co_return written;
}

Task<void> PackedWriter::write_as_it_is(std::size_t frame,
                                        std::vector<std::span<const std::byte>> pieces, Crc32 crc,
                                        const TransferHooks& hooks) {
  static constexpr std::array<std::byte, page_bytes> zeros{};
  const std::uint64_t bytes = shape_.plain(frame).bytes;
  const std::uint64_t padded = align_up(bytes, page_bytes);
  if (hooks.before_transfer) {
    CKPT_CO_CHECK(co_await hooks.before_transfer(padded));
  }
  std::uint64_t offset = take_room(padded);
  const auto padding = std::span(zeros).first(padded - bytes);
  frames_[frame] = {offset, static_cast<std::uint32_t>(bytes), format::stored_as_it_is};
  written_[frame] = {offset, padded, crc32(padding, crc)};
  for (const auto piece : pieces) {
    CKPT_CO_CHECK(co_await file_.write_lasting_at(offset, piece));
    offset += piece.size();
  }
  if (padding.empty()) co_return Status();
  Status written = co_await file_.write_lasting_at(offset, padding);
  co_return written;
}

Task<void> PackedWriter::finish() {
  std::vector<Written> all = written_;
  std::ranges::sort(all, {}, &Written::offset);
  for (const Written& written : all) {
    CKPT_ASSERT(written.bytes > 0);
    crc_ = crc32_combine(crc_, written.crc, written.bytes);
  }
  const std::vector<std::byte> table = format::encode(frames_);
  CKPT_ASSERT(table.size() == shape_.table_bytes());
  CKPT_CO_CHECK(co_await file_.write_at(next_, table));
  crc_ = crc32(table, crc_);
  packed_.bytes = next_ + table.size();
  packed_.table.bytes = table.size();
  packed_.table.digest = digest_of(table);
  Status cut = co_await file_.truncate(packed_.bytes);
  co_return cut;
}

// --- reading ---

PackedReader::PackedReader(os::File& file, format::PackedShape shape,
                           std::vector<format::Frame> frames, std::uint64_t frames_end)
    : file_(file), shape_(shape), frames_(std::move(frames)), frames_end_(frames_end) {}

Task<std::unique_ptr<PackedReader>> PackedReader::open(os::File& file, format::StoredFile stored,
                                                       format::PackedShape shape) {
  CKPT_ASSERT(stored.table.has_value());
  // The seal bounds the memory for the table: it has as many frames as the Layout has Chunks.
  if (!shape.is_possible(stored.bytes, *stored.table))
    co_return fail(Errc::corruption, "its size cannot be that of its Chunks");
  const std::uint64_t frames_end = stored.bytes - stored.table->bytes;
  std::vector<std::byte> table(stored.table->bytes);
  CKPT_CO_CHECK(co_await file.read_at(frames_end, table));
  CKPT_CO_TRY(auto frames, format::decode_frame_table(table, *stored.table, shape, stored.bytes));
  co_return std::unique_ptr<PackedReader>(
      new PackedReader(file, shape, std::move(frames), frames_end));
}

Task<void> PackedReader::read(std::size_t index, std::span<std::byte> target, Compute* compute) {
  const format::Frame& frame = frames_.at(index);
  CKPT_ASSERT(target.size() == shape_.plain(index).bytes);
  if (frame.width == format::stored_as_it_is) {
    CKPT_ASSERT(frame.bytes == target.size());
    Status read = co_await file_.read_at(frame.offset, target);
    co_return read;
  }
  // Whole pages are read faster, and the zeros behind the frame make them.
  const std::uint64_t pages = align_up(frame.bytes, page_bytes);
  const std::uint64_t there = std::min(pages, frames_end_ - frame.offset);
  PageBuffer memory(there);
  const std::span<std::byte> bytes = memory.first(there);
  CKPT_CO_CHECK(co_await file_.read_at(frame.offset, bytes));
  const std::span<const std::byte> packed = bytes.first(frame.bytes);
  std::function<Status()> unpack = [packed, width = frame.width, target] {
    return unpack_frame(packed, width, target);
  };
  Status opened = co_await compute_on(compute, std::move(unpack));
  co_return opened;
}

}  // namespace ckpt::storage
