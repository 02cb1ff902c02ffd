#include "format/part_front.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/assert.hpp"
#include "format/json.hpp"
#include "format/layout_codec.hpp"
#include "format/layout_validation.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view part_label = "part";

Unexpected broken_front(std::string_view problem) {
  return fail(Errc::corruption, fmt::format("{}: {}", part_label, problem));
}

}  // namespace

// The front's facts about one file. Its name and kind are those of the layout's member.
struct FileFacts {
  std::uint64_t bytes = 0;
  Crc32 crc = 0;
  std::string archive;
};
struct PackedFacts {
  FileFacts file;
  std::optional<TableSeal> table;
};

auto fields(Is<FileFacts> auto& it) {
  return field_list(it.bytes, it.crc, text(it.archive, name_bytes_max));
}
auto fields(Is<TableSeal> auto& it) {
  return field_list(it.bytes, it.digest);
}
auto fields(Is<PackedFacts> auto& it) {
  return field_list(it.file, it.table);
}
auto fields(Is<PartBlock> auto& it) {
  return field_list(text(it.first_name, name_bytes_max), it.tensors, it.bytes, it.digest);
}
auto fields(Is<PartEntry> auto& it) {
  return field_list(it.place, it.tensor);
}

namespace {

bool is_packed_file(const StoredFile& file) {
  return file.table.has_value();
}

StoredFile stored_file(const Member& member, const FileFacts& facts,
                       const std::optional<TableSeal>& table) {
  StoredFile file{member.file_name, member.kind, facts.bytes, facts.crc, facts.archive, table};
  if (table) file.name = packed_name(member.file_name);
  return file;
}

std::vector<PackedFacts> read_facts(PlainReader& in, std::uint16_t version) {
  std::vector<PackedFacts> all;
  if (version == part_version_packed) {
    in.take(all);
    return all;
  }
  std::vector<FileFacts> facts;
  in.take(facts);
  for (FileFacts& each : facts) all.push_back({std::move(each), std::nullopt});
  return all;
}

Status check_files(const PartFront& front) {
  const auto extents = member_extents(front.record);
  if (front.files.size() != extents.size()) return broken_front("not one checksum per file");
  for (std::size_t index = 0; index < extents.size(); ++index) {
    const StoredFile& file = front.files[index];
    const PackedShape shape{extents[index], front.record.chunk_bytes};
    const bool has_its_size = file.table ? shape.is_possible(file.bytes, *file.table)
                                         : file.bytes == extents[index].bytes;
    if (!has_its_size)
      return broken_front(
          fmt::format("{}: {} bytes are not those of its place", file.name, file.bytes));
    const bool is_named = !file.archive.empty() && is_utf8(file.archive);
    if (file.kind == MemberKind::torch ? !is_named : !file.archive.empty())
      return broken_front(fmt::format("{}: the name of its archive", file.name));
  }
  return {};
}

Status check_blocks(PartFront& front) {
  std::uint64_t offset = front.front_bytes;
  std::uint64_t tensors = 0;
  for (std::size_t index = 0; index < front.blocks.size(); ++index) {
    PartBlock& block = front.blocks[index];
    const bool is_possible = block.bytes <= part_block_bytes_max && block.tensors > 0 &&
                             block.tensors <= block.bytes / encoded_bytes_min<PartEntry>;
    if (!is_possible)
      return broken_front(
          fmt::format("block {}: {} bytes of {} tensors", index, block.bytes, block.tensors));
    if (index > 0 && block.first_name <= front.blocks[index - 1].first_name)
      return broken_front(fmt::format("block {}: its name does not follow those before it", index));
    block.offset = offset;
    offset += block.bytes;
    tensors += block.tensors;
  }
  if (tensors != front.tensors || tensors > tensors_max)
    return broken_front(fmt::format("blocks of {} tensors, it says {}", tensors, front.tensors));
  if (offset > part_bytes_max) return broken_front(fmt::format("{} bytes are too many", offset));
  return {};
}

}  // namespace

std::uint64_t PartFront::part_bytes() const {
  return blocks.empty() ? front_bytes : blocks.back().offset + blocks.back().bytes;
}

const PartBlock* PartFront::find(std::string_view name) const {
  const auto behind = std::ranges::upper_bound(blocks, name, {}, &PartBlock::first_name);
  return behind == blocks.begin() ? nullptr : &*std::prev(behind);
}

Result<std::uint64_t> part_front_bytes(std::span<const std::byte> bytes) {
  CKPT_ASSERT(bytes.size() >= part_head_bytes);
  Reader reader(bytes.first(part_head_bytes), part_label);
  const std::uint16_t version = reader.u16();
  const std::uint16_t kind = reader.u16();
  const std::uint64_t front_bytes = reader.u32();
  if (kind != static_cast<std::uint16_t>(RecordKind::shard_part)) return broken_front("it is none");
  if (version < version_of(RecordKind::shard_part) || version > part_version_packed)
    return fail(Errc::version_mismatch, fmt::format("{}: it has version {}, this program reads {}",
                                                    part_label, version, part_version_packed));
  if (front_bytes <= part_head_bytes || front_bytes > part_front_bytes_max)
    return broken_front(fmt::format("a front of {} bytes", front_bytes));
  return front_bytes;
}

Result<PartFront> decode_part_front(std::span<const std::byte> bytes) {
  std::uint16_t version = 0;
  CKPT_TRY(auto reader, Reader::open_record(bytes, RecordKind::shard_part, part_label,
                                            part_version_packed, version));
  PartFront front;
  front.front_bytes = reader.u32();
  if (front.front_bytes != bytes.size()) return broken_front("its front has another size");
  front.record = read_fields(reader);
  front.record_digest = reader.digest();
  PlainReader in(reader);
  const std::vector<PackedFacts> facts = read_facts(in, version);
  in.take(front.tensors);
  in.take(front.blocks);
  CKPT_CHECK(reader.finish());
  if (!front.record.layout.tensors.empty()) return broken_front("tensors in its front");
  CKPT_CHECK(validate_frame(front.record));
  if (facts.size() != front.record.layout.members.size())
    return broken_front("not one checksum per file");
  for (std::size_t index = 0; index < facts.size(); ++index) {
    front.files.push_back(
        stored_file(front.record.layout.members[index], facts[index].file, facts[index].table));
  }
  const bool is_packed = std::ranges::any_of(front.files, is_packed_file);
  if (is_packed != (version == part_version_packed))
    return broken_front(fmt::format("its version is {}, its files are of another", version));
  CKPT_CHECK(check_files(front));
  CKPT_CHECK(check_blocks(front));
  return front;
}

std::vector<std::byte> encode(const PartFront& front) {
  CKPT_ASSERT(front.record.layout.tensors.empty());
  CKPT_ASSERT(front.files.size() == front.record.layout.members.size());
  Writer body;
  write_fields(body, front.record);
  body.digest(front.record_digest);
  PlainWriter out(body);
  const bool is_packed = std::ranges::any_of(front.files, is_packed_file);
  std::vector<FileFacts> facts;
  std::vector<PackedFacts> packed_facts;
  for (const StoredFile& file : front.files) {
    facts.push_back({file.bytes, file.crc, file.archive});
    packed_facts.push_back({facts.back(), file.table});
  }
  if (is_packed) {
    out.put(packed_facts);
  } else {
    out.put(facts);
  }
  out.put(front.tensors);
  out.put(front.blocks);
  const std::vector<std::byte> bytes = body.take();
  Writer record;
  record.begin_record(RecordKind::shard_part,
                      is_packed ? part_version_packed : version_of(RecordKind::shard_part));
  record.count(part_head_bytes + bytes.size() + sizeof(Crc32));
  record.raw(bytes);
  return record.end_record();
}

std::vector<std::byte> encode_blocks(const Layout& layout, PartFront& front) {
  std::vector<std::uint32_t> order(layout.tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, {}, [&](std::uint32_t place) -> const std::string& {
    return layout.tensors[place].name;
  });
  std::vector<std::byte> all;
  Writer writer;
  PartBlock block;
  const auto end_block = [&] {
    const std::vector<std::byte> bytes = writer.take();
    CKPT_ASSERT(bytes.size() <= part_block_bytes_max);
    block.bytes = static_cast<std::uint32_t>(bytes.size());
    block.digest = ckpt::digest_of(bytes);
    front.blocks.push_back(std::move(block));
    block = {};
    writer = {};
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  front.blocks.clear();
  front.tensors = static_cast<std::uint32_t>(order.size());
  for (const std::uint32_t place : order) {
    if (block.tensors == 0) block.first_name = layout.tensors[place].name;
    PlainWriter(writer).put(PartEntry{place, layout.tensors[place]});
    ++block.tensors;
    if (writer.size() >= part_block_bytes) end_block();
  }
  if (block.tensors > 0) end_block();
  return all;
}

Result<std::vector<PartEntry>> decode_part_block(const PartFront& front, const PartBlock& block,
                                                 std::span<const std::byte> bytes) {
  if (bytes.size() != block.bytes || ckpt::digest_of(bytes) != block.digest)
    return broken_front(
        fmt::format("the block from \"{}\" does not match its digest", block.first_name));
  Reader reader(bytes, part_label);
  PlainReader in(reader);
  std::vector<PartEntry> entries;
  for (std::uint32_t count = 0; count < block.tensors && reader.is_good(); ++count) {
    PartEntry& entry = entries.emplace_back();
    in.take(entry);
    const bool is_next = count == 0 ? entry.tensor.name == block.first_name
                                    : entry.tensor.name > entries[count - 1].tensor.name;
    if (!is_next) reader.fail_here("a name that does not follow those before it");
  }
  CKPT_CHECK(reader.finish());
  for (const PartEntry& entry : entries) {
    if (entry.place >= front.tensors)
      return broken_front(fmt::format("tensor \"{}\" has no place", entry.tensor.name));
    CKPT_CHECK(validate_tensor(front.record.layout, entry.tensor));
  }
  return entries;
}

}  // namespace ckpt::format
