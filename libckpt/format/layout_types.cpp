#include "format/layout_types.hpp"

#include <algorithm>
#include <array>

#include "base/units.hpp"
#include "format/codec.hpp"

namespace ckpt::format {

namespace {

constexpr std::array<std::string_view, 3> kind_names = {"safetensors", "torch", "raw"};

}  // namespace

std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape) {
  // Multiplies from the left, as the reference reader does: it refuses an overflow before a zero.
  std::optional<std::uint64_t> elements = 1;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    elements = checked_multiply(*elements, static_cast<std::uint64_t>(dimension));
    if (!elements) return std::nullopt;
  }
  return checked_multiply(*elements, size_of(dtype));
}

std::string_view name_of(MemberKind kind) {
  return kind_names.at(static_cast<std::size_t>(kind) - 1);
}

std::optional<MemberKind> kind_from(std::string_view name) {
  const auto found = std::ranges::find(kind_names, name);
  if (found == kind_names.end()) return std::nullopt;
  return static_cast<MemberKind>(found - kind_names.begin() + 1);
}

bool Layout::has_archives() const {
  return std::ranges::any_of(members,
                             [](const Member& member) { return member.kind == MemberKind::torch; });
}

std::optional<std::size_t> blob_member(const Layout& layout) {
  if (layout.blob_capacity == 0 || layout.members.empty()) return std::nullopt;
  return layout.members.size() - 1;
}

std::uint64_t covered_bytes(const Layout& layout, std::uint64_t blob_bytes) {
  const auto blobs = blob_member(layout);
  if (!blobs) return layout.slot_bytes;
  return layout.members[*blobs].extent.offset + align_up(blob_bytes, page_bytes);
}

}  // namespace ckpt::format
