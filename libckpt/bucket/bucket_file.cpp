#include "bucket/bucket_file.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/units.hpp"

namespace ckpt::bucket {

namespace {

constexpr std::uint64_t chunk_bytes = 4 * MiB;

Unexpected cannot(const BucketPath& place, std::string_view what) {
  return fail(Errc::unsupported,
              fmt::format("{} {}: a bucket cannot do this", what, to_text(place)));
}

}  // namespace

std::uint64_t part_bytes_of(std::uint64_t object_bytes) {
  const std::uint64_t least = align_up(div_ceil(object_bytes, parts_max), chunk_bytes);
  return std::max(part_bytes_min, least);
}

// --- reading ---

Task<void> ObjectReader::read_at(std::uint64_t offset, std::span<std::byte> bytes) {
  if (bytes.empty()) co_return Status();
  if (offset > facts_.bytes || bytes.size() > facts_.bytes - offset) {
    co_return fail(Errc::corruption,
                   fmt::format("read {} bytes at {} of {}: it ends at {}", bytes.size(), offset,
                               to_text(place_), facts_.bytes));
  }
  Status done = co_await client_.read_range(place_, facts_.tag, offset, bytes);
  co_return done;
}

Task<void> ObjectReader::write_at(std::uint64_t, std::span<const std::byte>) {
  co_return cannot(place_, "write to the opened");
}
Task<void> ObjectReader::allocate(std::uint64_t) {
  co_return cannot(place_, "allocate");
}
Task<void> ObjectReader::truncate(std::uint64_t) {
  co_return cannot(place_, "truncate");
}
Task<void> ObjectReader::sync_data() {
  co_return Status();
}
Task<void> ObjectReader::close() {
  co_return Status();
}

// --- writing ---

ObjectWriter::~ObjectWriter() {
  if (!upload_.empty() && !is_complete_) client_.abort_in_background(place_, upload_);
}

Task<void> ObjectWriter::read_at(std::uint64_t, std::span<std::byte>) {
  co_return cannot(place_, "read what is being written to");
}

Task<void> ObjectWriter::truncate(std::uint64_t bytes) {
  if (part_bytes_ == 0 || is_complete_ || bytes > bytes_) co_return cannot(place_, "truncate");
  const std::uint64_t count = std::max<std::uint64_t>(1, div_ceil(bytes, part_bytes_));
  const auto is_used = [](const Part& part) { return part.bytes > 0; };
  const auto behind = parts_.begin() + static_cast<std::ptrdiff_t>(count);
  if (std::any_of(behind, parts_.end(), is_used)) co_return cannot(place_, "cut off a part of");
  bytes_ = bytes;
  parts_.resize(count);
  uploaded_.resize(count);
  const std::size_t last = count - 1;
  // It was waiting for bytes that will not come.
  const bool is_whole = parts_[last].bytes == bytes_of_part(last) && !parts_[last].is_sent;
  if (is_whole && !upload_.empty()) CKPT_CO_CHECK(co_await send_part(last));
  co_return Status();
}

Task<void> ObjectWriter::allocate(std::uint64_t bytes) {
  CKPT_ASSERT(part_bytes_ == 0);
  bytes_ = bytes;
  part_bytes_ = part_bytes_of(bytes);
  const std::uint64_t count = std::max<std::uint64_t>(1, div_ceil(bytes, part_bytes_));
  CKPT_ASSERT(count <= parts_max);
  parts_.resize(count);
  uploaded_.resize(count);
  if (count == 1) co_return Status();
  CKPT_CO_TRY(upload_, co_await client_.start_upload(place_));
  co_return Status();
}

std::uint64_t ObjectWriter::bytes_of_part(std::size_t index) const {
  return std::min(part_bytes_, bytes_ - index * part_bytes_);
}

Status ObjectWriter::check_write(std::uint64_t offset, std::uint64_t bytes) const {
  const bool is_inside = offset <= bytes_ && bytes <= bytes_ - offset;
  if (part_bytes_ != 0 && !is_complete_ && is_inside) return {};
  return fail(Errc::invalid_argument,
              fmt::format("write {} bytes at {} of {}: it was to have {} bytes", bytes, offset,
                          to_text(place_), bytes_));
}

std::uint64_t ObjectWriter::bytes_in_part(std::uint64_t offset, std::uint64_t bytes) const {
  const auto index = static_cast<std::size_t>(offset / part_bytes_);
  return std::min(bytes, index * part_bytes_ + bytes_of_part(index) - offset);
}

// The piece lies in one part, which is sent when it is whole.
Task<void> ObjectWriter::add_piece(std::uint64_t offset, std::span<const std::byte> piece) {
  const auto index = static_cast<std::size_t>(offset / part_bytes_);
  Part& part = parts_[index];
  if (part.is_sent || !part.pieces.emplace(offset, piece).second) {
    co_return fail(
        Errc::invalid_argument,
        fmt::format("write at {} of {}: these bytes were written before", offset, to_text(place_)));
  }
  part.bytes += piece.size();
  if (part.bytes != bytes_of_part(index) || upload_.empty()) co_return Status();
  Status sent = co_await send_part(index);
  co_return sent;
}

Task<void> ObjectWriter::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  CKPT_CO_CHECK(check_write(offset, bytes.size()));
  while (!bytes.empty()) {
    const std::uint64_t size = bytes_in_part(offset, bytes.size());
    auto& copies = parts_[static_cast<std::size_t>(offset / part_bytes_)].copies;
    copies.emplace_back(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    const std::span<const std::byte> copy(copies.back());
    CKPT_CO_CHECK(co_await add_piece(offset, copy));
    offset += size;
    bytes = bytes.subspan(size);
  }
  co_return Status();
}

Task<void> ObjectWriter::write_lasting_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  CKPT_CO_CHECK(check_write(offset, bytes.size()));
  while (!bytes.empty()) {
    const std::uint64_t size = bytes_in_part(offset, bytes.size());
    CKPT_CO_CHECK(co_await add_piece(offset, bytes.first(size)));
    offset += size;
    bytes = bytes.subspan(size);
  }
  co_return Status();
}

Pieces ObjectWriter::pieces_of(const Part& part) const {
  Pieces pieces;
  for (const auto& [offset, piece] : part.pieces) pieces.push_back(piece);
  return pieces;
}

Task<void> ObjectWriter::send_part(std::size_t index) {
  Part& part = parts_[index];
  CKPT_ASSERT(!part.is_sent);
  part.is_sent = true;
  PartOrder order;
  order.upload = upload_;
  order.index = index;
  Pieces pieces = pieces_of(part);
  std::uint64_t next = index * part_bytes_;
  for (const auto& [offset, piece] : part.pieces) {
    CKPT_ASSERT(offset == next);  // Else two writes overlapped.
    next += piece.size();
  }
  CKPT_CO_TRY(uploaded_[index],
              co_await client_.put_part(place_, std::move(order), std::move(pieces)));
  part.pieces.clear();
  part.copies.clear();
  co_return Status();
}

Task<void> ObjectWriter::sync_data() {
  if (is_complete_) co_return Status();
  if (part_bytes_ == 0) co_return cannot(place_, "complete, without a size,");
  for (std::size_t index = 0; index < parts_.size(); ++index) {
    const bool is_whole = parts_[index].bytes == bytes_of_part(index) &&
                          (upload_.empty() || !uploaded_[index].tag.empty());
    if (!is_whole) {
      co_return fail(
          Errc::invalid_argument,
          fmt::format("complete {}: bytes of its part {} are missing", to_text(place_), index + 1));
    }
  }
  if (upload_.empty()) {
    const os::PutCondition condition(os::PutMode::replace);
    CKPT_CO_CHECK(co_await client_.put(place_, pieces_of(parts_.front()), condition));
  } else {
    CKPT_CO_CHECK(co_await client_.complete_upload(place_, upload_, uploaded_, bytes_));
  }
  is_complete_ = true;
  parts_.front().copies.clear();
  co_return Status();
}

Task<void> ObjectWriter::close() {
  // Bytes that were not synced are not there, as after a crash.
  co_return Status();
}

}  // namespace ckpt::bucket
