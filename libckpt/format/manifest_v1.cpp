// The entry holds the record's fields by name, with offsets counted from the start of each file.
#include "format/manifest_v1.hpp"

#include <fmt/format.h>

#include "format/sealed_json.hpp"

namespace ckpt::format {

namespace {

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
  const auto known = kind_from(kind);
  if (!known) return reader.problem("a member of unknown kind");
  member.kind = *known;
  CKPT_TRY(member.extent.offset, reader.integer_member("slot_offset", slot_bytes_max));
  CKPT_TRY(member.header_bytes, reader.integer_member("header_bytes", slot_bytes_max));
  CKPT_TRY(member.extent.bytes, reader.integer_member("bytes", slot_bytes_max));
  CKPT_TRY(const auto checksum, reader.integer_member("crc32", UINT32_MAX));
  crc = static_cast<Crc32>(checksum);
  CKPT_CHECK(reader.end_object());
  return member;
}

// Version 1 stores whole tensors, so the box equals the tensor.
Result<TensorPlace> read_placed_tensor(JsonReader& reader, const Layout& layout) {
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

Result<ManifestShard> read_shard_of_version_1(JsonReader& reader, const Manifest& manifest) {
  ShardPart part;
  ShardRecord& record = part.record;
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
  CKPT_CHECK(read_members(reader, part));
  CKPT_CHECK(reader.array_member("tensors", [&]() -> Status {
    if (record.layout.tensors.size() == tensors_max) return reader.problem("too many tensors");
    CKPT_TRY(auto tensor, read_placed_tensor(reader, record.layout));
    record.layout.tensors.push_back(std::move(tensor));
    return {};
  }));
  CKPT_CHECK(read_blobs(reader, record));
  CKPT_CHECK(reader.end_object());
  CKPT_CHECK(validate(record));
  if (digest_of_version_1(record) != digest)
    return reader.problem(fmt::format("the shard of rank {} does not match its digest", rank));
  ManifestShard shard;
  shard.rank = record.id.rank;
  shard.slot_bytes = record.layout.slot_bytes;
  shard.record_digest = digest_of(record);
  shard.files = files_of(part);
  shard.embedded = std::make_shared<const ShardPart>(std::move(part));
  return shard;
}

}  // namespace ckpt::format
