#include "format/shard_part.hpp"

#include "format/codec.hpp"

namespace ckpt::format {

std::vector<std::byte> encode(const ShardPart& part) {
  Writer writer;
  writer.begin_record(RecordKind::shard_part);
  const auto record = encode(part.record);
  writer.count(record.size());
  writer.raw(record);
  writer.list(part.member_crcs, [&](Crc32 crc) { writer.u32(crc); });
  return writer.end_record();
}

Result<ShardPart> decode_shard_part(std::span<const std::byte> bytes) {
  CKPT_TRY(auto reader, Reader::open_record(bytes, RecordKind::shard_part, "shard part"));
  const auto record = reader.raw(reader.count(1));
  ShardPart part;
  part.member_crcs = reader.list<Crc32>(sizeof(Crc32), [&] { return reader.u32(); });
  CKPT_CHECK(reader.finish());
  CKPT_TRY(part.record, decode_shard_record(record));
  if (part.member_crcs.size() != part.record.layout.members.size())
    return fail(Errc::corruption, "shard part: not one checksum per file");
  return part;
}

std::string part_name(std::uint32_t rank) {
  return member_name(rank, "part");
}

bool is_part_name(std::string_view name) {
  std::string_view rest = name;
  if (!rest.starts_with("rank-") || !rest.ends_with(".part")) return false;
  rest.remove_prefix(5);
  rest.remove_suffix(5);
  return !rest.empty() && rest.size() <= 10 &&
         std::all_of(rest.begin(), rest.end(), [](char one) { return one >= '0' && one <= '9'; });
}

}  // namespace ckpt::format
