#include "format/shard_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "base/assert.hpp"
#include "base/units.hpp"
#include "format/json.hpp"
#include "format/layout_codec.hpp"
#include "format/layout_validation.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view record_label = "shard record";

Unexpected broken_record(std::string_view problem) {
  return fail(Errc::corruption, fmt::format("{}: {}", record_label, problem));
}

Status check_blobs(const ShardRecord& record) {
  if (record.blobs.size() != record.blob_names.size()) return broken_record("blobs without names");
  if (record.blobs.size() > blobs_max) return broken_record("too many blobs");
  if (record.blob_bytes > record.layout.blob_capacity)
    return broken_record("blobs above their capacity");
  const auto member = blob_member(record.layout);
  if (!member) {
    if (!record.blobs.empty()) return broken_record("blobs without a place");
    return {};
  }
  const std::uint64_t start = record.layout.members[*member].extent.offset;
  const std::uint64_t limit = start + record.blob_bytes;
  std::uint64_t end = start;
  std::unordered_set<std::string_view> names;
  for (std::size_t index = 0; index < record.blobs.size(); ++index) {
    const std::string& name = record.blob_names[index];
    if (name.empty() || name.size() > name_bytes_max || !is_utf8(name))
      return broken_record("a blob's name is not allowed");
    if (!names.insert(name).second)
      return broken_record(fmt::format("two blobs named \"{}\"", name));
    const Extent& blob = record.blobs[index];
    if (blob.offset < end || blob.offset > limit || blob.bytes > limit - blob.offset)
      return broken_record(fmt::format("blob \"{}\" lies outside its file or over another", name));
    end = blob.end();
  }
  return {};
}

Status check_chunks(const ShardRecord& record) {
  if (record.bytes < covered_bytes(record.layout, record.blob_bytes) ||
      record.bytes > record.layout.slot_bytes || record.bytes % page_bytes != 0)
    return broken_record(fmt::format("{} bytes are not what its layout covers", record.bytes));
  if (!std::has_single_bit(record.chunk_bytes) || record.chunk_bytes < page_bytes)
    return broken_record(fmt::format("chunks of {} bytes", record.chunk_bytes));
  if (record.chunk_crcs.size() != div_ceil(record.bytes, record.chunk_bytes))
    return broken_record(
        fmt::format("{} checksums for {} bytes", record.chunk_crcs.size(), record.bytes));
  return {};
}

}  // namespace

Extent ShardRecord::chunk(std::size_t index) const {
  CKPT_ASSERT(index < chunk_crcs.size());
  const std::uint64_t offset = index * chunk_bytes;
  return {offset, std::min(chunk_bytes, bytes - offset)};
}

Status validate(const ShardRecord& record) {
  CKPT_CHECK(validate_frame(record));
  return validate(record.layout);
}

Status validate_frame(const ShardRecord& record) {
  if (record.job.size() > job_bytes_max || !is_utf8(record.job))
    return broken_record("no job name");
  if (record.id.rank >= record.world_size)
    return broken_record(fmt::format("rank {} of {}", record.id.rank, record.world_size));
  CKPT_CHECK(validate_members(record.layout));
  for (const Member& member : record.layout.members)
    if (!is_member_name(member.file_name, record.id.rank))
      return broken_record(
          fmt::format("{} is no file of rank {}", member.file_name, record.id.rank));
  CKPT_CHECK(check_blobs(record));
  return check_chunks(record);
}

Digest digest_of(const ShardRecord& record) {
  return ckpt::digest_of(encode(record));
}

namespace {

// Stored as pairs of a name and a place.
template <class Record>
struct Blobs {
  Record& record;
};

}  // namespace

auto fields(Is<ShardRecord> auto& it) {
  return field_list(text(it.job, job_bytes_max), it.run, it.id, it.world_size, it.model, it.layout,
                    it.blob_bytes, Blobs<std::remove_reference_t<decltype(it)>>{it}, it.bytes,
                    it.chunk_bytes, it.chunk_crcs);
}

namespace {

template <class Self>
class RecordWriter : public FieldWriter<Self> {
 public:
  using FieldWriter<Self>::FieldWriter;
  using FieldWriter<Self>::put;

  void put(const Blobs<const ShardRecord>& blobs) {
    const ShardRecord& record = blobs.record;
    CKPT_ASSERT(record.blobs.size() == record.blob_names.size());
    this->out_.count(record.blobs.size());
    for (std::size_t index = 0; index < record.blobs.size(); ++index) {
      put(record.blob_names[index]);
      put(record.blobs[index]);
    }
  }
};

class RecordEncoder : public RecordWriter<RecordEncoder> {
 public:
  using RecordWriter::RecordWriter;
};

class EncoderOfVersion1 : public RecordWriter<EncoderOfVersion1> {
 public:
  using RecordWriter::put;
  using RecordWriter::RecordWriter;

  void put(const TensorPlace& tensor) {
    CKPT_ASSERT(!tensor.piece);
    put(tensor.name);
    out_.u8(static_cast<std::uint8_t>(tensor.dtype));
    put(tensor.shape);
    put(tensor.extent);
    put(tensor.member);
    put(tensor.alias_of);
  }
};

class RecordDecoder : public FieldReader<RecordDecoder> {
 public:
  using FieldReader::FieldReader;
  using FieldReader::take;

  void take(const Blobs<ShardRecord>& blobs) {
    const std::size_t count = in_.count(encoded_bytes_min<std::string> + encoded_bytes_min<Extent>);
    for (std::size_t index = 0; index < count && in_.is_good(); ++index) {
      take(text(blobs.record.blob_names.emplace_back(), name_bytes_max));
      take(blobs.record.blobs.emplace_back());
    }
  }
};

}  // namespace

std::vector<std::byte> encode(const ShardRecord& record) {
  return RecordEncoder::encode(record, RecordKind::shard_record);
}

Digest digest_of_version_1(const ShardRecord& record) {
  return ckpt::digest_of(EncoderOfVersion1::encode(record, RecordKind::shard_record, 1));
}

Result<ShardRecord> decode_shard_record(std::span<const std::byte> bytes) {
  CKPT_TRY(auto record,
           RecordDecoder::decode<ShardRecord>(bytes, RecordKind::shard_record, record_label));
  CKPT_CHECK(validate(record));
  return record;
}

void write_fields(Writer& writer, const ShardRecord& record) {
  RecordEncoder(writer).put(record);
}

ShardRecord read_fields(Reader& reader) {
  ShardRecord record;
  RecordDecoder(reader).take(record);
  return record;
}

std::vector<Extent> member_extents(const ShardRecord& record) {
  std::vector<Extent> extents;
  for (const Member& member : record.layout.members) extents.push_back(member.extent);
  if (const auto blobs = blob_member(record.layout)) extents[*blobs].bytes = record.blob_bytes;
  return extents;
}

}  // namespace ckpt::format
