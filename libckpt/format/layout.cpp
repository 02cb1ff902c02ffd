// How a layout is made:
//   1. Check every name, shape and alias.
//   2. Order: tensors whose size is a multiple of 4 KiB as given, then by falling element size.
//   3. Place them one after the other, counted from the start of the data.
//   4. Measure the header, which does not depend on where the data starts, and shift the data by
//      it.
//   5. Append the torch archives, each at the next 4 KiB boundary, in the order of their first
//      entries; then place the tied tensors.
//   6. Put the blobs at the next 4 KiB boundary.
#include "format/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/units.hpp"
#include "format/codec.hpp"
#include "format/json.hpp"
#include "format/layout_codec.hpp"
#include "format/safetensors_header.hpp"
#include "format/torch_archive.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view reserved_name = "__metadata__";

using NameIndex = std::unordered_map<std::string_view, std::size_t>;

std::string_view printable(std::string_view name) {
  return name.substr(0, 100);
}

Unexpected refuse(std::string_view name, std::string_view problem) {
  if (!is_utf8(name)) return fail(Errc::invalid_argument, fmt::format("a tensor: {}", problem));
  return fail(Errc::invalid_argument, fmt::format("tensor \"{}\": {}", printable(name), problem));
}

// Returns an empty text if the name is good.
std::string_view name_problem(std::string_view name) {
  if (name.empty()) return "its name is empty";
  if (name.size() > name_bytes_max) return "its name is longer than 4096 bytes";
  if (name == reserved_name) return "this name is reserved by the safetensors format";
  if (!is_utf8(name)) return "its name is not UTF-8";
  return {};
}

bool is_in_file(const TensorSpec& tensor) {
  return tensor.alias_of.empty() && tensor.archive.empty();
}

// At most what its entry in the rank's part takes.
std::uint64_t entry_bytes(const TensorSpec& tensor) {
  constexpr std::uint64_t numbers_bytes = 64;  // In an entry, and in a piece.
  const std::uint64_t dimensions = tensor.shape.size();
  std::uint64_t bytes = numbers_bytes + tensor.name.size() + tensor.alias_of.size();
  bytes += dimensions * sizeof(std::uint64_t);
  if (tensor.piece) {
    bytes += numbers_bytes + tensor.piece->order.size();
    bytes += (tensor.piece->global_shape.size() + dimensions) * sizeof(std::uint64_t);
  }
  return bytes;
}

// Step 1. Returns the size of each tensor in bytes.
Result<std::vector<std::uint64_t>> check(std::span<const TensorSpec> tensors) {
  if (tensors.size() > tensors_max)
    return fail(Errc::exhausted,
                fmt::format("{} tensors where {} are the most", tensors.size(), tensors_max));
  NameIndex index_of;
  index_of.reserve(tensors.size());
  std::vector<std::uint64_t> sizes;
  sizes.reserve(tensors.size());
  std::uint64_t list_bytes = 0;
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    const TensorSpec& tensor = tensors[index];
    if (const auto problem = name_problem(tensor.name); !problem.empty())
      return refuse(tensor.name, problem);
    if (!index_of.emplace(tensor.name, index).second)
      return refuse(tensor.name, "this name was added twice");
    if (size_of(tensor.dtype) == 0) return refuse(tensor.name, "its type is unknown");
    if (tensor.shape.size() > dimensions_max)
      return refuse(tensor.name, fmt::format("it has more than {} dimensions", dimensions_max));
    const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes || *bytes > slot_bytes_max)
      return refuse(tensor.name, "its shape is negative or too large");
    if (tensor.piece) {
      if (!tensor.archive.empty()) return refuse(tensor.name, "an entry of an archive is no piece");
      const auto problem = problem_of(*tensor.piece, tensor.dtype, tensor.shape);
      if (!problem.empty()) return refuse(tensor.name, problem);
    }
    sizes.push_back(*bytes);
    list_bytes += entry_bytes(tensor);
  }
  if (list_bytes > tensor_list_bytes_max)
    return fail(
        Errc::exhausted,
        fmt::format("{} tensors: their names and shapes take {} bytes where {} are the most",
                    tensors.size(), list_bytes, tensor_list_bytes_max));
  for (const TensorSpec& tensor : tensors) {
    if (tensor.alias_of.empty()) continue;
    const auto found = index_of.find(tensor.alias_of);
    if (found == index_of.end() || !is_in_file(tensors[found->second]))
      return refuse(tensor.name, fmt::format("it is tied to \"{}\", which is no tensor with bytes",
                                             printable(tensor.alias_of)));
    const TensorSpec& target = tensors[found->second];
    const bool is_like_it =
        target.dtype == tensor.dtype && target.shape == tensor.shape &&
        normalized(target.piece, target.shape) == normalized(tensor.piece, tensor.shape);
    if (!is_like_it)
      return refuse(tensor.name, fmt::format("it is tied to \"{}\" of another type, shape or piece",
                                             printable(tensor.alias_of)));
  }
  return sizes;
}

// Step 2. Linear: one pass for whole pages, then one per element size.
std::vector<std::size_t> file_order(std::span<const TensorSpec> tensors,
                                    std::span<const std::uint64_t> sizes) {
  std::vector<std::size_t> order;
  order.reserve(tensors.size());
  for (std::size_t index = 0; index < tensors.size(); ++index)
    if (is_in_file(tensors[index]) && sizes[index] % page_bytes == 0) order.push_back(index);
  for (const std::size_t element_bytes : std::array<std::size_t, 4>{8, 4, 2, 1})
    for (std::size_t index = 0; index < tensors.size(); ++index)
      if (is_in_file(tensors[index]) && sizes[index] % page_bytes != 0 &&
          size_of(tensors[index].dtype) == element_bytes)
        order.push_back(index);
  return order;
}

TensorPlace place_of(const TensorSpec& tensor, Extent extent, std::uint32_t member) {
  return {tensor.name,
          tensor.dtype,
          tensor.shape,
          extent,
          member,
          tensor.alias_of,
          normalized(tensor.piece, tensor.shape)};
}

// Step 3.
Result<std::vector<TensorPlace>> place_tensors(std::span<const TensorSpec> tensors,
                                               std::span<const std::uint64_t> sizes) {
  std::vector<TensorPlace> places;
  places.reserve(tensors.size());
  std::uint64_t offset = 0;
  for (const std::size_t index : file_order(tensors, sizes)) {
    places.push_back(place_of(tensors[index], {offset, sizes[index]}, 0));
    offset += sizes[index];
    if (offset > slot_bytes_max)
      return refuse(tensors[index].name, "with it the tensors are too large together");
  }
  return places;
}

// Step 5. The rank and the archive's number make the file name.
Status place_archives(Layout& layout, std::span<const TensorSpec> tensors, std::uint32_t rank) {
  std::vector<std::string_view> archives;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.archive.empty() || std::ranges::count(archives, tensor.archive) > 0) continue;
    archives.push_back(tensor.archive);
  }
  if (archives.size() > archives_max)
    return fail(Errc::exhausted,
                fmt::format("{} archives where {} are the most", archives.size(), archives_max));
  for (const std::string_view archive : archives) {
    std::vector<TensorPlace> entries;
    for (const TensorSpec& tensor : tensors) {
      if (tensor.archive != archive) continue;
      const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
      entries.push_back(place_of(tensor, {0, bytes.value_or(0)},
                                 static_cast<std::uint32_t>(layout.members.size())));
    }
    const std::uint64_t begin = align_up(layout.members.back().extent.end(), page_bytes);
    const std::string letter(1, static_cast<char>('a' + layout.members.size() - 1));
    CKPT_TRY(const std::uint64_t bytes, place_archive(entries, begin));
    layout.members.push_back(
        {member_name(rank, "pt" + letter), MemberKind::torch, {begin, bytes}, 0});
    layout.tensors.insert(layout.tensors.end(), entries.begin(), entries.end());
  }
  return {};
}

void place_aliases(Layout& layout, std::span<const TensorSpec> tensors) {
  NameIndex index_of;
  for (std::size_t index = 0; index < layout.tensors.size(); ++index)
    index_of.emplace(layout.tensors[index].name, index);
  std::vector<TensorPlace> aliases;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.alias_of.empty()) continue;
    const TensorPlace& target = layout.tensors[index_of.at(tensor.alias_of)];
    aliases.push_back(place_of(tensor, target.extent, target.member));
  }
  layout.tensors.insert(layout.tensors.end(), aliases.begin(), aliases.end());
}

}  // namespace

Result<std::uint64_t> check_tensor(const TensorSpec& tensor) {
  CKPT_TRY(const std::vector<std::uint64_t> sizes, check(std::span(&tensor, 1)));
  return sizes.front();
}

Result<Layout> make_layout(std::span<const TensorSpec> tensors, std::uint32_t rank,
                           std::uint64_t blob_capacity, std::uint32_t version) {
  CKPT_TRY(const auto sizes, check(tensors));
  Layout layout;
  layout.version = version;
  layout.blob_capacity = blob_capacity;
  CKPT_TRY(layout.tensors, place_tensors(tensors, sizes));
  std::uint64_t data_bytes = 0;
  for (const auto& tensor : layout.tensors) data_bytes = std::max(data_bytes, tensor.extent.end());

  // Step 4. The header lists aliases, whose place is only a name so far.
  place_aliases(layout, tensors);
  Member file;
  file.file_name = member_name(rank, "safetensors");
  file.kind = MemberKind::safetensors;
  layout.members.push_back(file);  // The header names it, at its widest.
  const std::uint64_t json_bytes = header_json(layout, widest_facts()).size();
  file.header_bytes = align_up(safetensors_length_bytes + json_bytes, page_bytes);
  if (file.header_bytes - safetensors_length_bytes > safetensors_json_bytes_max)
    return fail(Errc::exhausted,
                fmt::format("{} tensors: their names and shapes take {} bytes where a safetensors "
                            "header may have {}",
                            tensors.size(), json_bytes, safetensors_json_bytes_max));
  file.extent = {0, file.header_bytes + data_bytes};
  std::erase_if(layout.tensors, [](const TensorPlace& place) { return !place.alias_of.empty(); });
  for (auto& tensor : layout.tensors) tensor.extent.offset += file.header_bytes;
  layout.members.front() = std::move(file);

  // Step 5.
  CKPT_CHECK(place_archives(layout, tensors, rank));
  place_aliases(layout, tensors);

  // Step 6.
  if (blob_capacity > slot_bytes_max)
    return fail(Errc::invalid_argument, fmt::format("blobs of {} bytes", blob_capacity));
  if (blob_capacity > 0) {
    const Extent extent{align_up(layout.members.back().extent.end(), page_bytes), blob_capacity};
    layout.members.push_back({member_name(rank, "blobs"), MemberKind::raw, extent, 0});
  }
  layout.slot_bytes = align_up(layout.members.back().extent.end(), page_bytes);
  if (layout.slot_bytes > slot_bytes_max)
    return fail(Errc::invalid_argument, fmt::format("a Slot of {} bytes", layout.slot_bytes));
  return layout;
}

std::string tensors_in(const Layout& layout, const Extent& extent) {
  std::string first;
  std::size_t count = 0;
  for (const TensorPlace& place : layout.tensors) {
    const bool is_there = place.alias_of.empty() && place.extent.bytes > 0 &&
                          place.extent.offset < extent.end() && extent.offset < place.extent.end();
    if (is_there && ++count == 1) first = fmt::format("tensor \"{}\"", printable(place.name));
  }
  if (count < 2) return first;
  const std::size_t others = count - 1;
  return fmt::format("{} and {} other{} near it", first, others, others == 1 ? "" : "s");
}

Digest fingerprint(const Layout& layout) {
  Writer writer;
  PlainWriter fields_of(writer);
  writer.list(layout.members, [&](const Member& member) {
    writer.u8(static_cast<std::uint8_t>(member.kind));
    fields_of.put(member.extent);
    fields_of.put(member.header_bytes);
  });
  fields_of.put(layout.tensors);
  return ckpt::digest_of(writer.take());
}

}  // namespace ckpt::format
