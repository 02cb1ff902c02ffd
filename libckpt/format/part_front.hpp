// PartFront: the beginning of a rank's part, with everything but the tensors, and an index of
// these.
//
//   front | block | block | ...        (one file; libckpt/docs/format.md has the tables)
//
// The front says what the shard is, and seals each block by its digest; the manifest seals the
// front. Tensors lie in the blocks in ascending order of their names, so that a reader of a few
// names reads the front and a few blocks, and believes none of them unverified.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/frame_table.hpp"
#include "format/shard_record.hpp"

namespace ckpt::format {

// The most that a reader accepts. The tensors of a layout take no more than half of it.
inline constexpr std::uint64_t part_bytes_max = std::uint64_t{1} << 30;
inline constexpr std::uint64_t part_front_bytes_max = part_bytes_max / 2;
// A block ends with the entry that brings it to this size.
inline constexpr std::uint64_t part_block_bytes = 32u << 10;
inline constexpr std::uint64_t part_block_bytes_max = 64u << 10;
// With so many bytes of a part, `part_front_bytes` knows how many the front has.
inline constexpr std::size_t part_head_bytes = 8;
// The version of a part with packed files. Without them it is the one before, for older programs.
inline constexpr std::uint16_t part_version_packed = 3;

// A file as it is stored, for the manifest: a packed one has a name and a size of its own.
struct StoredFile {
  std::string name;
  MemberKind kind = MemberKind::raw;
  std::uint64_t bytes = 0;
  Crc32 crc = 0;
  std::string archive;             // The name of the torch archive; empty: it is none.
  std::optional<TableSeal> table;  // A packed file has one; none: the plain one.
  bool operator==(const StoredFile&) const = default;
};

// Blocks follow one another without a gap, the first one behind the front.
struct PartBlock {
  std::string first_name;  // Their names ascend from here to below that of the next block.
  std::uint32_t tensors = 0;
  std::uint32_t bytes = 0;
  Digest digest;
  std::uint64_t offset = 0;  // In the part; follows from the sizes.
};

struct PartFront {
  ShardRecord record;  // With an empty `layout.tensors`.
  Digest record_digest;
  std::vector<StoredFile> files;  // Parallel to the layout's members.
  std::uint32_t tensors = 0;
  std::vector<PartBlock> blocks;
  std::uint64_t front_bytes = 0;

  std::uint64_t part_bytes() const;
  // The only block that may hold the tensor; null: the part does not have it.
  const PartBlock* find(std::string_view name) const;
};

struct PartEntry {
  std::uint32_t place = 0;  // In the order of `layout.tensors`.
  TensorPlace tensor;
};

// `bytes` are the first ones of a part, at least `part_head_bytes`. Errors: corruption,
// version_mismatch.
Result<std::uint64_t> part_front_bytes(std::span<const std::byte> bytes);
// `bytes` are exactly those of the front. Errors: corruption, version_mismatch.
Result<PartFront> decode_part_front(std::span<const std::byte> bytes);
std::vector<std::byte> encode(const PartFront& front);

// Returns the bytes of all blocks, with the tensors of the layout, and sets `tensors` and `blocks`.
std::vector<std::byte> encode_blocks(const Layout& layout, PartFront& front);
// `bytes` are exactly those of the block, which is one of the front's. Each tensor lies inside of
// its file. Errors: corruption.
Result<std::vector<PartEntry>> decode_part_block(const PartFront& front, const PartBlock& block,
                                                 std::span<const std::byte> bytes);

}  // namespace ckpt::format
