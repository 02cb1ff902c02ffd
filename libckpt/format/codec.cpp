#include "format/codec.hpp"

#include <fmt/format.h>

#include "base/assert.hpp"

namespace ckpt::format {

namespace {

constexpr std::size_t crc_bytes = sizeof(Crc32);
constexpr std::size_t record_bytes_min = 2 * sizeof(std::uint16_t) + crc_bytes;

}  // namespace

void Writer::digest(const Digest& value) {
  u64(value.high);
  u64(value.low);
}

void Writer::string(std::string_view value) {
  count(value.size());
  raw(std::as_bytes(std::span(value.data(), value.size())));
}

void Writer::raw(std::span<const std::byte> value) {
  bytes_.insert(bytes_.end(), value.begin(), value.end());
}

void Writer::count(std::size_t value) {
  CKPT_ASSERT(value <= UINT32_MAX);
  u32(static_cast<std::uint32_t>(value));
}

void Writer::begin_record(RecordKind kind, std::uint16_t version) {
  CKPT_ASSERT(bytes_.empty());
  u16(version);
  u16(static_cast<std::uint16_t>(kind));
}

std::vector<std::byte> Writer::end_record() {
  CKPT_ASSERT(bytes_.size() >= 2 * sizeof(std::uint16_t));
  u32(crc32(bytes_));
  return take();
}

Result<Reader> Reader::open_record(std::span<const std::byte> bytes, RecordKind kind,
                                   std::string_view what) {
  std::uint16_t version = 0;
  return open_record(bytes, kind, what, version_of(kind), version);
}

Result<Reader> Reader::open_record(std::span<const std::byte> bytes, RecordKind kind,
                                   std::string_view what, std::uint16_t newest,
                                   std::uint16_t& version) {
  if (bytes.size() < record_bytes_min)
    return fail(Errc::corruption, fmt::format("{}: {} bytes are too few", what, bytes.size()));
  const auto body = bytes.first(bytes.size() - crc_bytes);
  Reader tail(bytes.last(crc_bytes), what);
  const Crc32 stored = tail.u32();
  const Crc32 computed = crc32(body);
  if (stored != computed)
    return fail(Errc::corruption, fmt::format("{}: the checksum is {:08x}, the bytes have {:08x}",
                                              what, stored, computed));
  Reader reader(body, what);
  version = reader.u16();
  if (version < version_of(kind) || version > newest)
    return fail(Errc::version_mismatch,
                fmt::format("{}: it has version {}, this program reads {}", what, version, newest));
  const auto found = reader.u16();
  if (found != static_cast<std::uint16_t>(kind))
    return fail(Errc::corruption, fmt::format("{}: it is a record of kind {}", what, found));
  return reader;
}

bool Reader::boolean() {
  const auto value = u8();
  if (value > 1) fail_here("a boolean that is neither 0 nor 1");
  return value == 1;
}

Digest Reader::digest() {
  Digest value;
  value.high = u64();
  value.low = u64();
  return value;
}

std::string Reader::string(std::size_t bytes_max) {
  const std::size_t size = count(1);
  if (size > bytes_max) {
    fail_here(fmt::format("a text of {} bytes where {} are the most", size, bytes_max));
    return {};
  }
  const auto source = raw(size);
  return std::string(reinterpret_cast<const char*>(source.data()), source.size());
}

std::span<const std::byte> Reader::raw(std::size_t bytes) {
  if (!is_good()) return {};
  if (bytes > remaining()) {
    fail_here(fmt::format("{} bytes are wanted and {} are left", bytes, remaining()));
    return {};
  }
  const auto source = bytes_.subspan(offset_, bytes);
  offset_ += bytes;
  return source;
}

std::size_t Reader::count(std::size_t element_bytes_min) {
  CKPT_ASSERT(element_bytes_min > 0);
  const std::size_t size = u32();
  if (size > remaining() / element_bytes_min) {
    fail_here(fmt::format("a list of {} where {} bytes are left", size, remaining()));
    return 0;
  }
  return size;
}

void Reader::fail_here(std::string_view problem) {
  if (!is_good()) return;
  failure_ = fmt::format("{}: {} at byte {}", what_, problem, offset_);
}

Status Reader::finish() {
  if (is_good() && remaining() != 0) fail_here(fmt::format("{} bytes too many", remaining()));
  if (!is_good()) return fail(Errc::corruption, failure_);
  return {};
}

std::optional<Digest> digest_from_hex(std::string_view text) {
  if (text.size() != 32) return std::nullopt;
  Digest digest;
  for (std::size_t index = 0; index < text.size(); ++index) {
    const char digit = text[index];
    std::uint64_t value = 0;
    if (digit >= '0' && digit <= '9') {
      value = static_cast<std::uint64_t>(digit - '0');
    } else if (digit >= 'a' && digit <= 'f') {
      value = static_cast<std::uint64_t>(digit - 'a') + 10;
    } else {
      return std::nullopt;
    }
    auto& half = index < 16 ? digest.high : digest.low;
    half = (half << 4) | value;
  }
  return digest;
}

}  // namespace ckpt::format
