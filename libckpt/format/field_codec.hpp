// FieldCodec: writes and reads a struct along its one list of fields (fields.hpp).
//
// A type that has no list, or whose fields are not all, gets a `put` in a class derived from
// FieldWriter, and a `take` in one derived from FieldReader.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "format/codec.hpp"
#include "format/fields.hpp"

namespace ckpt::format {

template <class Self>
class FieldWriter {
 public:
  explicit FieldWriter(Writer& out) : out_(out) {}

  void put(bool value) { out_.boolean(value); }
  void put(std::uint8_t value) { out_.u8(value); }
  void put(std::uint32_t value) { out_.u32(value); }
  void put(std::uint64_t value) { out_.u64(value); }
  void put(std::int64_t value) { out_.u64(static_cast<std::uint64_t>(value)); }
  void put(Step value) { out_.u64(number(value)); }
  void put(const Digest& value) { out_.digest(value); }
  void put(const std::string& value) { out_.string(value); }
  void put(const Text<const std::string>& field) { out_.string(field.value); }
  template <class Enum>
  void put(const Enumerator<Enum>& field) {
    out_.u8(static_cast<std::uint8_t>(field.value));
  }
  template <class T>
  void put(const std::vector<T>& values) {
    out_.list(values, [this](const T& value) { self().put(value); });
  }
  template <class T>
  void put(const std::optional<T>& value) {
    out_.optional(value, [this](const T& it) { self().put(it); });
  }
  template <class T>
  void put(const Padded<const std::optional<T>>& field) {
    out_.boolean(field.value.has_value());
    self().put(field.value.value_or(T{}));
  }
  template <class T>
  void put(const ValueFirst<const std::optional<T>>& field) {
    self().put(field.value.value_or(T{}));
    out_.boolean(field.value.has_value());
  }
  template <HasFields Struct>
  void put(const Struct& it) {
    std::apply([this](const auto&... field) { (self().put(field), ...); }, fields(it));
  }

  // A whole record of the kind.
  template <class Record>
  static std::vector<std::byte> encode(const Record& record, RecordKind kind) {
    return encode(record, kind, version_of(kind));
  }
  template <class Record>
  static std::vector<std::byte> encode(const Record& record, RecordKind kind,
                                       std::uint16_t version) {
    Writer writer;
    writer.begin_record(kind, version);
    Self(writer).put(record);
    return writer.end_record();
  }

 protected:
  Self& self() { return static_cast<Self&>(*this); }

  Writer& out_;
};

template <class Self>
class FieldReader {
 public:
  explicit FieldReader(Reader& in) : in_(in) {}

  void take(bool& value) { value = in_.boolean(); }
  void take(std::uint8_t& value) { value = in_.u8(); }
  void take(std::uint32_t& value) { value = in_.u32(); }
  void take(std::uint64_t& value) { value = in_.u64(); }
  void take(std::int64_t& value) { value = static_cast<std::int64_t>(in_.u64()); }
  void take(Step& value) { value = Step{in_.u64()}; }
  void take(Digest& value) { value = in_.digest(); }
  // Not of a plain string: each one needs its limit.
  void take(const Text<std::string>& field) { field.value = in_.string(field.bytes_max); }
  template <class Enum>
  void take(const Enumerator<Enum>& field) {
    field.value = in_.enumerator(field.first, field.last);
  }
  template <class T>
  void take(std::vector<T>& values) {
    values = in_.list<T>(encoded_bytes_min<T>, [this] { return taken<T>(); });
  }
  template <class T>
  void take(std::optional<T>& value) {
    value = in_.optional<T>([this] { return taken<T>(); });
  }
  template <class T>
  void take(const Padded<std::optional<T>>& field) {
    const bool is_there = in_.boolean();
    keep(field.value, taken<T>(), is_there);
  }
  template <class T>
  void take(const ValueFirst<std::optional<T>>& field) {
    const T value = taken<T>();
    keep(field.value, value, in_.boolean());
  }
  template <HasFields Struct>
  void take(Struct& it) {
    take_fields(it);
  }

  // A whole record of the kind. Errors: corruption, version_mismatch.
  template <class Record>
  static Result<Record> decode(std::span<const std::byte> bytes, RecordKind kind,
                               std::string_view what) {
    CKPT_TRY(auto reader, Reader::open_record(bytes, kind, what));
    Record record;
    Self(reader).take(record);
    CKPT_CHECK(reader.finish());
    return record;
  }

 protected:
  // For a `take` of one struct, which checks more than its fields.
  template <HasFields Struct>
  void take_fields(Struct& it) {
    std::apply([this](auto&&... field) { (self().take(field), ...); }, fields(it));
  }
  template <class T>
  void keep(std::optional<T>& field, const T& value, bool is_there) {
    if (is_there) {
      field = value;
    } else if (value != T{}) {
      in_.fail_here("a value although there is none");
    }
  }
  template <class T>
  T taken() {
    T value{};
    self().take(value);
    return value;
  }
  Self& self() { return static_cast<Self&>(*this); }

  Reader& in_;
};

// For structs whose fields need nothing beyond the above.
class PlainWriter : public FieldWriter<PlainWriter> {
 public:
  using FieldWriter::FieldWriter;
};
class PlainReader : public FieldReader<PlainReader> {
 public:
  using FieldReader::FieldReader;
};

}  // namespace ckpt::format
