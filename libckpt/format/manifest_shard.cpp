// The entry holds the record's fields by name, with offsets counted from the start of each file,
// since readers of the files do not know Slots.
#include "format/manifest_shard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/assert.hpp"
#include "format/sealed_json.hpp"

namespace ckpt::format {

namespace {

constexpr std::array<std::string_view, 3> kind_names = {"safetensors", "torch", "raw"};

std::string_view name_of(MemberKind kind) {
  return kind_names.at(static_cast<std::size_t>(kind) - 1);
}

// Writes the members of one object, with commas between them.
class ObjectWriter {
 public:
  explicit ObjectWriter(std::string& out) : out_(out) { out_ += "{"; }

  template <class T>
  void field(std::string_view key, const T& value) {
    this->key(key);
    append_json(out_, value);
  }
  template <class List, class WriteOne>
  void list(std::string_view key, const List& values, WriteOne write_one) {
    this->key(key);
    out_ += "[";
    bool is_first = true;
    for (const auto& value : values) {
      if (!is_first) out_ += ",";
      is_first = false;
      write_one(value);
    }
    out_ += "]";
  }
  void integers(std::string_view key, std::span<const std::uint64_t> values) {
    list(key, values, [&](std::uint64_t value) { append_json(out_, value); });
  }
  void end() { out_ += "}"; }

 private:
  void key(std::string_view key) {
    if (out_.back() != '{') out_ += ",";
    append_json(out_, key);
    out_ += ":";
  }

  std::string& out_;
};

void append_range(ObjectWriter& object, const Extent& extent, std::uint64_t file_offset) {
  const std::uint64_t begin = extent.offset - file_offset;
  object.integers("range", std::array{begin, begin + extent.bytes});
}

void append_member(std::string& out, const Member& member, std::uint64_t bytes, Crc32 crc) {
  out += "\n";
  ObjectWriter object(out);
  object.field("file", std::string_view(member.file_name));
  object.field("kind", name_of(member.kind));
  object.field("slot_offset", member.extent.offset);
  object.field("header_bytes", member.header_bytes);
  object.field("bytes", bytes);
  object.field("crc32", std::uint64_t{crc});
  object.end();
}

void append_tensor(std::string& out, const TensorPlace& tensor, const Layout& layout) {
  out += "\n";
  std::vector<std::uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
  ObjectWriter object(out);
  object.field("name", std::string_view(tensor.name));
  object.field("dtype", safetensors_name(tensor.dtype));
  object.integers("shape", shape);
  object.integers("global_shape", shape);
  object.integers("global_offset", std::vector<std::uint64_t>(shape.size(), 0));
  object.field("member", std::uint64_t{tensor.member});
  append_range(object, tensor.extent, layout.members[tensor.member].extent.offset);
  object.field("alias_of", std::string_view(tensor.alias_of));
  object.end();
}

Result<std::vector<std::uint64_t>> read_integers(JsonReader& reader, std::string_view key,
                                                 std::size_t count_max) {
  std::vector<std::uint64_t> values;
  CKPT_CHECK(reader.array_member(key, [&]() -> Status {
    if (values.size() == count_max) return reader.problem("a list that is too long");
    CKPT_TRY(const auto value, reader.integer());
    values.push_back(value);
    return {};
  }));
  return values;
}

Result<Extent> read_range(JsonReader& reader, std::uint64_t file_offset) {
  CKPT_TRY(const auto ends, read_integers(reader, "range", 2));
  if (ends.size() != 2 || ends[1] < ends[0] || ends[1] > slot_bytes_max)
    return reader.problem("a range that is none");
  return Extent{file_offset + ends[0], ends[1] - ends[0]};
}

// Returns the member with its true size. The caller widens that of the blobs to its capacity.
Result<Member> read_member(JsonReader& reader, Crc32& crc) {
  Member member;
  CKPT_CHECK(reader.begin_object());
  CKPT_TRY(member.file_name, reader.string_member("file"));
  CKPT_TRY(const auto kind, reader.string_member("kind"));
  const auto found = std::find(kind_names.begin(), kind_names.end(), kind);
  if (found == kind_names.end()) return reader.problem("a member of unknown kind");
  member.kind = static_cast<MemberKind>(found - kind_names.begin() + 1);
  CKPT_TRY(member.extent.offset, reader.integer_member("slot_offset", slot_bytes_max));
  CKPT_TRY(member.header_bytes, reader.integer_member("header_bytes", slot_bytes_max));
  CKPT_TRY(member.extent.bytes, reader.integer_member("bytes", slot_bytes_max));
  CKPT_TRY(const auto checksum, reader.integer_member("crc32", UINT32_MAX));
  crc = static_cast<Crc32>(checksum);
  CKPT_CHECK(reader.end_object());
  return member;
}

// Version 1 stores whole tensors, so the box equals the tensor.
Result<TensorPlace> read_tensor(JsonReader& reader, const Layout& layout) {
  TensorPlace tensor;
  CKPT_CHECK(reader.begin_object());
  CKPT_TRY(tensor.name, reader.string_member("name"));
  CKPT_TRY(const auto type, reader.string_member("dtype"));
  const auto dtype = dtype_from_safetensors(type);
  if (!dtype) return reader.problem("a tensor of unknown type");
  tensor.dtype = *dtype;
  CKPT_TRY(const auto shape, read_integers(reader, "shape", dimensions_max));
  CKPT_TRY(const auto global_shape, read_integers(reader, "global_shape", dimensions_max));
  CKPT_TRY(const auto global_offset, read_integers(reader, "global_offset", dimensions_max));
  if (global_shape != shape || global_offset != std::vector<std::uint64_t>(shape.size(), 0))
    return fail(Errc::version_mismatch, fmt::format("{}: tensor \"{}\" is a part of a larger one",
                                                    manifest_name, tensor.name));
  tensor.shape.assign(shape.begin(), shape.end());
  CKPT_TRY(const auto member, reader.integer_member("member", members_max));
  if (member >= layout.members.size()) return reader.problem("a tensor without a file");
  tensor.member = static_cast<std::uint32_t>(member);
  CKPT_TRY(tensor.extent, read_range(reader, layout.members[member].extent.offset));
  CKPT_TRY(tensor.alias_of, reader.string_member("alias_of"));
  CKPT_CHECK(reader.end_object());
  return tensor;
}

Status read_members(JsonReader& reader, ShardPart& shard) {
  Layout& layout = shard.record.layout;
  CKPT_CHECK(reader.array_member("members", [&]() -> Status {
    if (layout.members.size() == members_max) return reader.problem("too many files");
    Crc32 crc = 0;
    CKPT_TRY(auto member, read_member(reader, crc));
    layout.members.push_back(std::move(member));
    shard.member_crcs.push_back(crc);
    return {};
  }));
  if (const auto blobs = blob_member(layout)) {
    Extent& extent = layout.members[*blobs].extent;
    shard.record.blob_bytes = extent.bytes;
    extent.bytes = layout.blob_capacity;
  }
  return {};
}

Status read_blobs(JsonReader& reader, ShardRecord& record) {
  const auto member = blob_member(record.layout);
  const std::uint64_t file_offset = member ? record.layout.members[*member].extent.offset : 0;
  return reader.array_member("blobs", [&]() -> Status {
    CKPT_CHECK(reader.begin_object());
    CKPT_TRY(auto name, reader.string_member("name"));
    CKPT_TRY(const auto extent, read_range(reader, file_offset));
    CKPT_CHECK(reader.end_object());
    record.blob_names.push_back(std::move(name));
    record.blobs.push_back(extent);
    return {};
  });
}

}  // namespace

void append_shard(std::string& out, const ShardPart& shard) {
  const ShardRecord& record = shard.record;
  const Layout& layout = record.layout;
  const auto file_extents = member_extents(record);
  CKPT_ASSERT(shard.member_crcs.size() == layout.members.size());
  ObjectWriter object(out);
  object.field("rank", std::uint64_t{record.id.rank});
  object.field("record_digest", digest_of_version_1(record));
  object.field("model", record.model);
  object.field("layout_version", std::uint64_t{layout.version});
  object.field("slot_bytes", layout.slot_bytes);
  object.field("blob_capacity", layout.blob_capacity);
  object.field("bytes", record.bytes);
  object.field("chunk_bytes", record.chunk_bytes);
  object.list("chunk_crcs", record.chunk_crcs,
              [&](Crc32 crc) { append_json(out, std::uint64_t{crc}); });
  std::size_t index = 0;
  object.list("members", layout.members, [&](const Member& member) {
    append_member(out, member, file_extents[index].bytes, shard.member_crcs[index]);
    ++index;
  });
  object.list("tensors", layout.tensors,
              [&](const TensorPlace& tensor) { append_tensor(out, tensor, layout); });
  index = 0;
  object.list("blobs", record.blobs, [&](const Extent& blob) {
    out += "\n";
    ObjectWriter entry(out);
    entry.field("name", std::string_view(record.blob_names[index++]));
    append_range(entry, blob, file_extents.back().offset);
    entry.end();
  });
  object.end();
}

Result<ShardPart> read_shard(JsonReader& reader, const Manifest& manifest) {
  ShardPart shard;
  ShardRecord& record = shard.record;
  record.job = manifest.job;
  record.run = manifest.run;
  record.id.at = manifest.at;
  record.world_size = manifest.world_size;
  CKPT_CHECK(reader.begin_object());
  CKPT_TRY(const auto rank, reader.integer_member("rank", UINT32_MAX));
  record.id.rank = static_cast<std::uint32_t>(rank);
  CKPT_TRY(const auto digest, digest_member(reader, "record_digest"));
  CKPT_TRY(record.model, digest_member(reader, "model"));
  CKPT_TRY(const auto version, reader.integer_member("layout_version", UINT32_MAX));
  record.layout.version = static_cast<std::uint32_t>(version);
  CKPT_TRY(record.layout.slot_bytes, reader.integer_member("slot_bytes"));
  CKPT_TRY(record.layout.blob_capacity, reader.integer_member("blob_capacity"));
  CKPT_TRY(record.bytes, reader.integer_member("bytes"));
  CKPT_TRY(record.chunk_bytes, reader.integer_member("chunk_bytes"));
  CKPT_CHECK(reader.array_member("chunk_crcs", [&]() -> Status {
    CKPT_TRY(const auto crc, reader.integer());
    if (crc > UINT32_MAX) return reader.problem("a checksum above 32 bits");
    record.chunk_crcs.push_back(static_cast<Crc32>(crc));
    return {};
  }));
  CKPT_CHECK(read_members(reader, shard));
  CKPT_CHECK(reader.array_member("tensors", [&]() -> Status {
    if (record.layout.tensors.size() == tensors_max) return reader.problem("too many tensors");
    CKPT_TRY(auto tensor, read_tensor(reader, record.layout));
    record.layout.tensors.push_back(std::move(tensor));
    return {};
  }));
  CKPT_CHECK(read_blobs(reader, record));
  CKPT_CHECK(reader.end_object());
  CKPT_CHECK(validate(record));
  if (digest_of_version_1(record) != digest)
    return reader.problem(fmt::format("the shard of rank {} does not match its digest", rank));
  return shard;
}

}  // namespace ckpt::format
