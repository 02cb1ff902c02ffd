// Validates a layout that was read: members tile the Slot, and tensors tile their member.
#include "format/layout_validation.hpp"

#include <fmt/format.h>

#include <unordered_map>

#include "base/units.hpp"
#include "format/json.hpp"
#include "format/member_name.hpp"
#include "format/safetensors_header.hpp"

namespace ckpt::format {

namespace {

Unexpected broken_layout(std::string_view what, std::string_view problem) {
  return fail(Errc::corruption, fmt::format("layout: {}: {}", what, problem));
}

// Both ends are within limits, so that later sums of offsets never wrap.
bool is_bounded(const Extent& extent) {
  return extent.offset <= slot_bytes_max && extent.bytes <= slot_bytes_max;
}

Status check_member(const Member& member) {
  if (!is_member_name(member.file_name))
    return broken_layout("a member", "its file name is not ours");
  if (!is_bounded(member.extent)) return broken_layout(member.file_name, "its extent is too large");
  if (member.kind != MemberKind::safetensors) {
    if (member.header_bytes != 0)
      return broken_layout(member.file_name, "it should have no header");
    return {};
  }
  if (member.header_bytes == 0 || member.header_bytes % page_bytes != 0)
    return broken_layout(member.file_name, "its header does not end on a page");
  if (member.header_bytes - safetensors_length_bytes > safetensors_json_bytes_max)
    return broken_layout(member.file_name, "its header is too large");
  if (member.header_bytes > member.extent.bytes)
    return broken_layout(member.file_name, "its header is larger than the file");
  return {};
}

}  // namespace

Status validate_members(const Layout& layout) {
  if (layout.members.empty()) return broken_layout("members", "there are none");
  if (layout.members.size() > members_max) return broken_layout("members", "there are too many");
  std::uint64_t end = 0;
  for (const Member& member : layout.members) {
    CKPT_CHECK(check_member(member));
    for (const Member& other : layout.members)
      if (&other != &member && other.file_name == member.file_name)
        return broken_layout(member.file_name, "two members have this name");
    if (member.extent.offset != align_up(end, page_bytes))
      return broken_layout(member.file_name, "it does not start where the one before it ends");
    end = member.extent.end();
  }
  if (layout.slot_bytes != align_up(end, page_bytes) || layout.slot_bytes > slot_bytes_max)
    return broken_layout("slot", "its size is not that of its members");
  const Member& last = layout.members.back();
  if (layout.blob_capacity > 0 &&
      (last.kind != MemberKind::raw || last.extent.bytes != layout.blob_capacity))
    return broken_layout(last.file_name, "it is not the place for blobs");
  return {};
}

namespace {

Status check_piece(const Layout& layout, const TensorPlace& tensor) {
  if (!tensor.piece) return {};
  if (layout.members[tensor.member].kind != MemberKind::safetensors)
    return broken_layout(tensor.name, "a piece in an archive");
  const auto problem = problem_of(*tensor.piece, tensor.dtype, tensor.shape);
  if (!problem.empty()) return broken_layout(tensor.name, problem);
  if (normalized(tensor.piece, tensor.shape) != tensor.piece)
    return broken_layout(tensor.name, "its piece has another form than ours");
  return {};
}

}  // namespace

Status validate_tensor(const Layout& layout, const TensorPlace& tensor) {
  if (tensor.name.empty() || tensor.name.size() > name_bytes_max || !is_utf8(tensor.name) ||
      tensor.name == "__metadata__")
    return broken_layout("a tensor", "its name is not allowed");
  if (tensor.shape.size() > dimensions_max)
    return broken_layout(tensor.name, "too many dimensions");
  const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
  if (!bytes || *bytes != tensor.extent.bytes || !is_bounded(tensor.extent))
    return broken_layout(tensor.name, "its size is not that of its shape");
  if (tensor.member >= layout.members.size()) return broken_layout(tensor.name, "it has no member");
  const Member& member = layout.members[tensor.member];
  if (tensor.extent.offset < member.extent.offset + member.header_bytes)
    return broken_layout(tensor.name, "it begins outside its file");
  if (tensor.extent.end() > member.extent.end())
    return broken_layout(tensor.name, "it ends outside its file");
  return check_piece(layout, tensor);
}

namespace {

class TensorChecker {
 public:
  explicit TensorChecker(const Layout& layout) : layout_(layout) {
    for (const Member& member : layout.members)
      ends_.push_back(member.extent.offset + member.header_bytes);
    known_.reserve(layout.tensors.size());
  }

  Status check(const TensorPlace& tensor) {
    CKPT_CHECK(validate_tensor(layout_, tensor));
    if (!known_.emplace(tensor.name, &tensor).second)
      return broken_layout(tensor.name, "two tensors have this name");
    return tensor.alias_of.empty() ? check_place(tensor) : check_alias(tensor);
  }

  // Safetensors files have no byte after the last tensor.
  Status finish() const {
    for (std::size_t index = 0; index < ends_.size(); ++index) {
      const Member& member = layout_.members[index];
      if (member.kind == MemberKind::safetensors && ends_[index] != member.extent.end())
        return broken_layout(member.file_name, "its tensors do not end where the file ends");
    }
    return {};
  }

 private:
  Status check_place(const TensorPlace& tensor) {
    const Member& member = layout_.members[tensor.member];
    std::uint64_t& end = ends_[tensor.member];
    if (member.kind == MemberKind::raw) return broken_layout(tensor.name, "it lies in a raw file");
    const bool is_behind = tensor.extent.offset >= end;
    const bool is_next = tensor.extent.offset == end;
    if (member.kind == MemberKind::safetensors ? !is_next : !is_behind)
      return broken_layout(tensor.name, "it overlaps another tensor or leaves a hole");
    end = tensor.extent.end();
    return {};
  }

  Status check_alias(const TensorPlace& tensor) const {
    const auto found = known_.find(tensor.alias_of);
    if (found == known_.end())
      return broken_layout(tensor.name, "it is tied to no tensor before it");
    const TensorPlace& target = *found->second;
    if (!target.alias_of.empty() || target.dtype != tensor.dtype || target.shape != tensor.shape ||
        target.piece != tensor.piece || target.extent != tensor.extent ||
        target.member != tensor.member)
      return broken_layout(tensor.name, "it differs from the tensor it is tied to");
    return {};
  }

  const Layout& layout_;
  std::vector<std::uint64_t> ends_;  // Where each member's next tensor may start.
  std::unordered_map<std::string_view, const TensorPlace*> known_;
};

}  // namespace

Status validate(const Layout& layout) {
  if (layout.tensors.size() > tensors_max) return broken_layout("tensors", "there are too many");
  CKPT_CHECK(validate_members(layout));
  TensorChecker checker(layout);
  for (const TensorPlace& tensor : layout.tensors) CKPT_CHECK(checker.check(tensor));
  return checker.finish();
}

}  // namespace ckpt::format
