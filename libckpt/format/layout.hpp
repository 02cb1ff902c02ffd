// Layout: where every tensor of one rank lies in its Slot. The Slot is the files, one after
// another.
//
// Members follow one another, each starting at a multiple of 4 KiB. The first is the safetensors
// file with all tensors outside of archives. The torch archives come next. A raw file of the blobs,
// if there are any, is last. A Layout is agreed once, and changes only when tensors are added,
// removed or resized.
#pragma once

#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/checksum.hpp"
#include "format/piece.hpp"

namespace ckpt::format {

enum class MemberKind : std::uint8_t { safetensors = 1, torch = 2, raw = 3 };
// "safetensors", "torch", "raw".
std::string_view name_of(MemberKind kind);
std::optional<MemberKind> kind_from(std::string_view name);

// Extent: a range of bytes, in the Slot unless stated otherwise.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t end() const { return offset + bytes; }
  bool operator==(const Extent&) const = default;
};

struct Member {
  std::string file_name;  // "rank-00000.safetensors"; built from integers only.
  MemberKind kind = MemberKind::raw;
  Extent extent;                   // In the Slot. For blobs, `bytes` is the capacity.
  std::uint64_t header_bytes = 0;  // Of safetensors: 8 + JSON + padding to 4 KiB.
  bool operator==(const Member&) const = default;
};

struct TensorPlace {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::int64_t> shape;
  Extent extent;  // In the Slot. Zero bytes for zero-size tensors.
  std::uint32_t member = 0;
  std::string alias_of;        // Tied: the name that holds the bytes, and whose `extent` this is.
  std::optional<Piece> piece;  // Where it lies in the global tensor; none: it is the whole one.
  bool operator==(const TensorPlace&) const = default;
};

// TensorSpec: the description of a tensor from which a Layout is made.
struct TensorSpec {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::int64_t> shape;
  std::string alias_of;
  std::string archive;  // The torch archive it belongs to; empty: none.
  std::optional<Piece> piece;
};

struct Layout {
  std::vector<Member> members;
  std::vector<TensorPlace> tensors;  // In file order; aliases follow the tensors they name.
  std::uint64_t blob_capacity = 0;
  std::uint64_t slot_bytes = 0;  // A Slot's size: all members, padded to 4 KiB.
  std::uint32_t version = 1;     // Grows with each change in one session.
  bool has_archives() const;
  bool operator==(const Layout&) const = default;
};

// Errors: invalid_argument (duplicate name, negative or overflowing shape, alias of nothing, a name
// that is empty, too long, "__metadata__" or not UTF-8, a piece outside of its global tensor),
// exhausted (more than `tensors_max`, or names and shapes of more than `tensor_list_bytes_max`). An
// alias has the type, the shape and the piece of the tensor that it names, which is no alias
// itself. This limits what all tensors take in the rank's part, on storage.
inline constexpr std::uint64_t tensor_list_bytes_max = 256u << 20;
inline constexpr std::size_t tensors_max = 2'000'000;  // Most reach the header's 100 MB first.
inline constexpr std::size_t name_bytes_max = 4096;
inline constexpr std::size_t job_bytes_max = 128;
inline constexpr std::size_t members_max = 16;
inline constexpr std::uint64_t slot_bytes_max = std::uint64_t{1} << 60;  // Sums of two never wrap.
Result<Layout> make_layout(std::span<const TensorSpec> tensors, std::uint32_t rank,
                           std::uint64_t blob_capacity, std::uint32_t version = 1);

// For layouts from a disk or a peer: checks everything about a result of make_layout that readers
// rely on. Errors: corruption.
Status validate(const Layout& layout);
// The same without the tensors.
Status validate_members(const Layout& layout);

// The index of the member that holds the blobs, if there is one. It is always last.
std::optional<std::size_t> blob_member(const Layout& layout);
// The size of the part of the Slot that is written, sent and checksummed when `blob_bytes` of blobs
// are in use: all members with their padding, up to a multiple of 4 KiB.
std::uint64_t covered_bytes(const Layout& layout, std::uint64_t blob_bytes);
// The size of a contiguous tensor; nothing if a dimension is negative or the product overflows.
std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape);

// Makes "rank-00003.safetensors", and checks that a name is of this form for this rank.
std::string member_name(std::uint32_t rank, std::string_view extension);
bool is_member_name(std::string_view name, std::optional<std::uint32_t> rank = std::nullopt);
// The same, or the name of the rank's part, or of a packed file (frame_table.hpp).
bool is_name_of_rank(std::string_view name, std::optional<std::uint32_t> rank = std::nullopt);

// The model's fingerprint: equal for equal names, types, shapes, pieces and places. It leaves out
// file names and the version, so that ranks with the same tensors agree. Ranks with other parts of
// one tensor do not.
Digest fingerprint(const Layout& layout);

// The facts that the header of a rank's safetensors file records besides the tensors.
struct HeaderFacts {
  std::string job;  // UTF-8, at most `job_bytes_max`.
  std::string run;  // to_hex(RunId).
  std::uint64_t timeline = 0;
  Step step{};
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
};

// Writes the header of the layout's safetensors member: exactly `header_bytes`, whatever the facts.
// Called once per layout; `patch_header` then writes a step's numbers into it without allocating.
// Errors: invalid_argument (a fact is too long or not UTF-8).
Result<std::vector<std::byte>> render_header(const Layout& layout, const HeaderFacts& facts);
void patch_header(std::span<std::byte> header, std::uint64_t timeline, Step step);

}  // namespace ckpt::format
