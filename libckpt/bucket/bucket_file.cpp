#include "bucket/bucket_file.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/units.hpp"

namespace ckpt::bucket {

namespace {

constexpr std::uint64_t chunk_bytes = 4 * MiB;

Unexpected cannot(const Place& place, std::string_view what) {
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
Task<void> ObjectWriter::truncate(std::uint64_t) {
  co_return cannot(place_, "truncate");
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

Task<void> ObjectWriter::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  Status done = co_await write_pieces(offset, bytes, Lasting::copied);
  co_return done;
}

Task<void> ObjectWriter::write_lasting_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  Status done = co_await write_pieces(offset, bytes, Lasting::yes);
  co_return done;
}

Task<void> ObjectWriter::write_pieces(std::uint64_t offset, std::span<const std::byte> bytes,
                                      Lasting lasting) {
  const bool is_inside = offset <= bytes_ && bytes.size() <= bytes_ - offset;
  if (part_bytes_ == 0 || is_complete_ || !is_inside) {
    co_return fail(Errc::invalid_argument,
                   fmt::format("write {} bytes at {} of {}: it was to have {} bytes", bytes.size(),
                               offset, to_text(place_), bytes_));
  }
  while (!bytes.empty()) {
    const auto index = static_cast<std::size_t>(offset / part_bytes_);
    const std::uint64_t end = index * part_bytes_ + bytes_of_part(index);
    auto piece = bytes.first(std::min<std::uint64_t>(bytes.size(), end - offset));
    Part& part = parts_[index];
    if (lasting == Lasting::copied) {
      part.copies.emplace_back(piece.begin(), piece.end());
      piece = part.copies.back();
    }
    if (part.is_sent || !part.pieces.emplace(offset, piece).second) {
      co_return fail(Errc::invalid_argument,
                     fmt::format("write at {} of {}: these bytes were written before", offset,
                                 to_text(place_)));
    }
    part.bytes += piece.size();
    offset += piece.size();
    bytes = bytes.subspan(piece.size());
    if (part.bytes == bytes_of_part(index) && !upload_.empty())
      CKPT_CO_CHECK(co_await send_part(index));
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
  // What was not synced is not there, as after a crash.
  co_return Status();
}

}  // namespace ckpt::bucket
