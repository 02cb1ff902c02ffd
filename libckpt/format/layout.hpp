// Layout: where every tensor of one rank lies in its Slot; the Slot is the files, one after
// another.
//
// Members stand one after another, each starting at a multiple of 4 KiB. The first is the
// safetensors file with all tensors that are not in an archive; then come the torch archives, and
// last, when there are blobs, a raw file of them. A
// Layout is agreed once and changes only when tensors are added, removed or resized.
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

namespace ckpt::format {

enum class MemberKind : std::uint8_t { safetensors = 1, torch = 2, raw = 3 };

// Extent: a range of bytes, in the Slot unless said otherwise.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t end() const { return offset + bytes; }
  bool operator==(const Extent&) const = default;
};

struct Member {
  std::string file_name;  // "rank-00000.safetensors"; made by us from integers only.
  MemberKind kind = MemberKind::raw;
  Extent extent;  // In the Slot. For blobs `bytes` is the capacity: the size varies.
  std::uint64_t header_bytes = 0;  // Of a safetensors member: 8 + JSON + padding, a 4 KiB multiple.
  bool operator==(const Member&) const = default;
};

struct TensorPlace {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::int64_t> shape;
  Extent extent;  // In the Slot. Zero bytes for zero-size tensors.
  std::uint32_t member = 0;
  std::string alias_of;  // Tied: the name that holds the bytes; `extent` is that one's.
  bool operator==(const TensorPlace&) const = default;
};

// TensorSpec: what a Layout is made from.
struct TensorSpec {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::int64_t> shape;
  std::string alias_of;
  std::string archive;  // The torch archive that it is an entry of; empty: none.
};

struct Layout {
  std::vector<Member> members;
  std::vector<TensorPlace> tensors;  // In file order; aliases behind those they name.
  std::uint64_t blob_capacity = 0;
  std::uint64_t slot_bytes = 0;  // All members, padded to 4 KiB: what a Slot must hold.
  std::uint32_t version = 1;     // Grows with each change in one session.
  bool has_archives() const;
  bool operator==(const Layout&) const = default;
};

// Errors: invalid_argument (duplicate name, negative or overflowing shape, alias of nothing, a name
// that is empty, too long, "__metadata__" or not UTF-8), exhausted (more than `tensors_max`).
// An alias has the type and the shape of the tensor that it names, which is no alias itself.
inline constexpr std::size_t tensors_max = 2'000'000;  // The header's 100 MB end earlier for most.
inline constexpr std::size_t name_bytes_max = 4096;
inline constexpr std::size_t job_bytes_max = 128;
inline constexpr std::size_t dimensions_max = 32;
inline constexpr std::size_t members_max = 16;
inline constexpr std::uint64_t slot_bytes_max = std::uint64_t{1} << 60;  // Sums of two never wrap.
Result<Layout> make_layout(std::span<const TensorSpec> tensors, std::uint32_t rank,
                           std::uint64_t blob_capacity, std::uint32_t version = 1);

// For layouts that came from disk or a peer: whether make_layout could have made it, as far as
// readers rely on it. Errors: corruption.
Status validate(const Layout& layout);

// Index of the member that holds the blobs, if the layout has one: it stands last.
std::optional<std::size_t> blob_member(const Layout& layout);
// The part of the Slot that is written, sent and checksummed with `blob_bytes` of blobs in use:
// all members with their padding, up to a multiple of 4 KiB.
std::uint64_t covered_bytes(const Layout& layout, std::uint64_t blob_bytes);
// Bytes of a contiguous tensor; nothing when a dimension is negative or the product overflows.
std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape);

// "rank-00003.safetensors", and whether a name that was read has this form for this rank.
std::string member_name(std::uint32_t rank, std::string_view extension);
bool is_member_name(std::string_view name, std::optional<std::uint32_t> rank = std::nullopt);

// Equal for equal names, types, shapes and places: the model's fingerprint. File names and the
// version do not count, so that ranks with the same tensors agree.
Digest fingerprint(const Layout& layout);

// What the header of the rank's safetensors file says besides the tensors.
struct HeaderFacts {
  std::string job;  // UTF-8, at most `job_bytes_max`.
  std::string run;  // to_hex(RunId).
  std::uint64_t timeline = 0;
  Step step{};
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
};

// Writes the header of the layout's safetensors member: exactly `header_bytes` for any facts.
// Returned once per layout; `patch_header` then writes a step's numbers into it without allocating.
// Errors: invalid_argument (a fact is too long or not UTF-8).
Result<std::vector<std::byte>> render_header(const Layout& layout, const HeaderFacts& facts);
void patch_header(std::span<std::byte> header, std::uint64_t timeline, Step step);

}  // namespace ckpt::format
