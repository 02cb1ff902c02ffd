#include "format/shard_part.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "format/layout_validation.hpp"
#include "format/torch_archive.hpp"

namespace ckpt::format {

namespace {

Unexpected broken_part(std::string_view problem) {
  return fail(Errc::corruption, fmt::format("part: {}", problem));
}

// Puts the tensors of all blocks back into their places.
Result<std::vector<TensorPlace>> read_tensors(const PartFront& front,
                                              std::span<const std::byte> bytes) {
  std::vector<TensorPlace> tensors(front.tensors);
  std::vector<bool> is_there(front.tensors, false);
  for (const PartBlock& block : front.blocks) {
    CKPT_TRY(auto entries,
             decode_part_block(front, block, bytes.subspan(block.offset, block.bytes)));
    for (PartEntry& entry : entries) {
      if (is_there[entry.place])
        return broken_part(fmt::format("tensor \"{}\" has no place of its own", entry.tensor.name));
      is_there[entry.place] = true;
      tensors[entry.place] = std::move(entry.tensor);
    }
  }
  return tensors;
}

}  // namespace

std::vector<StoredFile> files_of(const ShardPart& part) {
  const Layout& layout = part.record.layout;
  const auto extents = member_extents(part.record);
  CKPT_ASSERT(part.member_crcs.size() == extents.size());
  std::vector<StoredFile> files;
  for (std::size_t index = 0; index < extents.size(); ++index) {
    const Member& member = layout.members[index];
    StoredFile file{member.file_name,        member.kind,   extents[index].bytes,
                    part.member_crcs[index], std::string(), std::nullopt};
    if (!part.packed.empty() && part.packed.at(index)) {
      file.name = packed_name(member.file_name);
      file.bytes = part.packed[index]->bytes;
      file.table = part.packed[index]->table;
    }
    files.push_back(std::move(file));
  }
  for (const TensorPlace& tensor : layout.tensors) {
    StoredFile& file = files.at(tensor.member);
    if (file.kind != MemberKind::torch || !file.archive.empty()) continue;
    file.archive = tensor.name.substr(0, tensor.name.find(archive_separator));
  }
  return files;
}

std::vector<std::byte> encode(const ShardPart& part) {
  PartFront front;
  front.record_digest = digest_of(part.record);
  front.files = files_of(part);
  const std::vector<std::byte> blocks = encode_blocks(part.record.layout, front);
  front.record = part.record;
  front.record.layout.tensors.clear();
  std::vector<std::byte> bytes = encode(front);
  bytes.insert(bytes.end(), blocks.begin(), blocks.end());
  return bytes;
}

Result<ShardPart> decode_shard_part(std::span<const std::byte> bytes, const PartSeal& seal) {
  if (bytes.size() != seal.bytes || seal.front_bytes > seal.bytes)
    return broken_part(
        fmt::format("it has {} bytes, its manifest says {}", bytes.size(), seal.bytes));
  const auto front_bytes = bytes.first(seal.front_bytes);
  if (ckpt::digest_of(front_bytes) != seal.front_digest)
    return broken_part("its bytes do not match its digest");
  CKPT_TRY(PartFront front, decode_part_front(front_bytes));
  if (front.part_bytes() != bytes.size()) return broken_part("it does not end with its last block");
  CKPT_TRY(auto tensors, read_tensors(front, bytes));
  ShardPart part;
  part.record = std::move(front.record);
  part.record.layout.tensors = std::move(tensors);
  CKPT_CHECK(validate(part.record.layout));
  if (digest_of(part.record) != front.record_digest)
    return broken_part("its record does not match its digest");
  for (const StoredFile& file : front.files) {
    part.member_crcs.push_back(file.crc);
    part.packed.emplace_back();
    if (file.table) part.packed.back() = PackedFile{file.bytes, *file.table};
  }
  if (std::ranges::none_of(part.packed, &std::optional<PackedFile>::has_value)) part.packed.clear();
  if (files_of(part) != front.files)
    return broken_part("an archive with another name than its entries");
  return part;
}

std::string part_name(std::uint32_t rank) {
  return member_name(rank, "part");
}

bool is_part_name(std::string_view name, std::optional<std::uint32_t> rank) {
  return is_name_of_rank(name, rank) && name.ends_with(".part");
}

}  // namespace ckpt::format
