// Codec: a little-endian cursor over bytes that trusts nothing it reads.
//
// The Writer appends. The Reader remembers its first failure and returns zeros and empty lists from
// then on, so that a decoder is straight-line code with one check at its end. Every length is
// checked against the remaining bytes before memory is allocated for it. New records list their
// fields once: fields.hpp.
#pragma once

#include <array>
#include <ckpt/result.hpp>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/checksum.hpp"

namespace ckpt::format {

// Every stored or sent record consists of u16 version, u16 kind, the fields, and a CRC-32 of all
// that.
enum class RecordKind : std::uint16_t {
  shard_record = 1,
  node_report = 2,
  decree = 3,
  shard_part = 4,
  start = 5,
  frame_table = 6,
};
// Each kind has a version of its own.
constexpr std::uint16_t version_of(RecordKind kind) {
  return kind == RecordKind::shard_record || kind == RecordKind::shard_part ? 2 : 1;
}

class Writer {
 public:
  void u8(std::uint8_t value) { bytes_.push_back(static_cast<std::byte>(value)); }
  void u16(std::uint16_t value) { little_endian(value); }
  void u32(std::uint32_t value) { little_endian(value); }
  void u64(std::uint64_t value) { little_endian(value); }
  void boolean(bool value) { u8(value ? 1 : 0); }
  void digest(const Digest& value);
  void string(std::string_view value);  // u32 length, then the bytes.
  void raw(std::span<const std::byte> value);
  void count(std::size_t value);  // u32.

  template <class List, class WriteOne>
  void list(const List& values, WriteOne write_one) {
    count(values.size());
    for (const auto& value : values) write_one(value);
  }
  template <class T, class WriteOne>
  void optional(const std::optional<T>& value, WriteOne write_one) {
    boolean(value.has_value());
    if (value) write_one(*value);
  }

  std::size_t size() const { return bytes_.size(); }
  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }
  std::vector<std::byte> take() { return std::move(bytes_); }

  void begin_record(RecordKind kind) { begin_record(kind, version_of(kind)); }
  void begin_record(RecordKind kind, std::uint16_t version);
  std::vector<std::byte> end_record();  // Appends the CRC.

 private:
  template <std::unsigned_integral T>
  void little_endian(T value) {
    std::array<std::byte, sizeof(T)> encoded;
    for (std::size_t index = 0; index < sizeof(T); ++index)
      encoded[index] = static_cast<std::byte>((value >> (8 * index)) & 0xff);
    raw(encoded);
  }

  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  // `what` appears in errors: "shard record". It must outlive the Reader.
  Reader(std::span<const std::byte> bytes, std::string_view what) : bytes_(bytes), what_(what) {}

  // Checks the CRC at the end, the version and the kind, then stops at the first field. Errors:
  // corruption, version_mismatch.
  static Result<Reader> open_record(std::span<const std::byte> bytes, RecordKind kind,
                                    std::string_view what);
  // The same for a kind that has newer versions, too; sets the `version` that it has.
  static Result<Reader> open_record(std::span<const std::byte> bytes, RecordKind kind,
                                    std::string_view what, std::uint16_t newest,
                                    std::uint16_t& version);

  std::uint8_t u8() { return little_endian<std::uint8_t>(); }
  std::uint16_t u16() { return little_endian<std::uint16_t>(); }
  std::uint32_t u32() { return little_endian<std::uint32_t>(); }
  std::uint64_t u64() { return little_endian<std::uint64_t>(); }
  bool boolean();
  Digest digest();
  std::string string(std::size_t bytes_max);
  std::span<const std::byte> raw(std::size_t bytes);
  // Reads the length of a list whose elements take at least `element_bytes_min` each.
  std::size_t count(std::size_t element_bytes_min);

  // `Enum` must have the values first..last without a gap.
  template <class Enum>
  Enum enumerator(Enum first, Enum last) {
    const auto value = u8();
    if (value < static_cast<std::uint8_t>(first) || value > static_cast<std::uint8_t>(last)) {
      fail_here("a value that is not in its enumeration");
      return first;
    }
    return static_cast<Enum>(value);
  }
  template <class T, class ReadOne>
  std::vector<T> list(std::size_t element_bytes_min, ReadOne read_one) {
    std::vector<T> values;
    const std::size_t size = count(element_bytes_min);
    values.reserve(size);
    for (std::size_t index = 0; index < size && is_good(); ++index) values.push_back(read_one());
    return values;
  }
  template <class T, class ReadOne>
  std::optional<T> optional(ReadOne read_one) {
    if (!boolean()) return std::nullopt;
    return read_one();
  }

  bool is_good() const { return failure_.empty(); }
  std::size_t remaining() const { return bytes_.size() - offset_; }
  // For decoders: records `problem` unless there is a failure already.
  void fail_here(std::string_view problem);
  // Errors: corruption, with the first problem and its offset; also when bytes are left over.
  Status finish();

 private:
  template <std::unsigned_integral T>
  T little_endian() {
    const auto source = raw(sizeof(T));
    T value = 0;
    for (std::size_t index = 0; index < source.size(); ++index)
      value = static_cast<T>(value | (static_cast<T>(source[index]) << (8 * index)));
    return value;
  }

  std::span<const std::byte> bytes_;
  std::string_view what_;
  std::size_t offset_ = 0;
  std::string failure_;
};

// The product; nothing when it does not fit.
constexpr std::optional<std::uint64_t> checked_multiply(std::uint64_t left, std::uint64_t right) {
  if (left != 0 && right > UINT64_MAX / left) return std::nullopt;
  return left * right;
}

// Accepts exactly 32 lower-case digits.
std::optional<Digest> digest_from_hex(std::string_view text);

}  // namespace ckpt::format
