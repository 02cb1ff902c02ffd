// The texts below are those that render() writes, without the values between them.
#include "format/manifest_size.hpp"

#include "base/units.hpp"
#include "format/layout.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view shard_text =
    R"({"rank":,"record_digest":"","model":"","layout_version":,"slot_bytes":,"blob_capacity":,)"
    R"("bytes":,"chunk_bytes":,"chunk_crcs":[],"members":[],"tensors":[],"blobs":[]},)"
    "\n";
constexpr std::string_view member_text =
    "\n"
    R"({"file":,"kind":"safetensors","slot_offset":,"header_bytes":,"bytes":,"crc32":},)";
constexpr std::string_view tensor_text =
    "\n"
    R"({"name":,"dtype":"","shape":[],"global_shape":[],"global_offset":[],"member":,)"
    R"("range":[,],"alias_of":},)";
constexpr std::string_view blob_text =
    "\n"
    R"({"name":,"range":[,]},)";
// Assumes the longest version of the software and the largest numbers.
constexpr std::uint64_t frame_bytes = 1024;
constexpr std::uint64_t digest_digits = 32;
constexpr std::uint64_t crc_bytes = 11;  // 4294967295 and a comma.

std::uint64_t digits(std::uint64_t value) {
  std::uint64_t count = 1;
  for (; value >= 10; value /= 10) ++count;
  return count;
}

// The size with quotes.
std::uint64_t text_bytes(std::string_view text) {
  constexpr std::uint64_t escape_bytes = 6;  // \u001f.
  std::uint64_t bytes = 2;
  for (const char letter : text) {
    const auto value = static_cast<unsigned char>(letter);
    const bool is_plain = value >= 0x20 && letter != '"' && letter != '\\';
    bytes += is_plain ? 1 : escape_bytes;
  }
  return bytes;
}

std::uint64_t range_bytes(const Extent& extent, std::uint64_t file_offset) {
  const std::uint64_t begin = extent.offset - file_offset;
  return digits(begin) + digits(begin + extent.bytes);
}

std::uint64_t tensor_entry_bytes(const TensorPlace& tensor, const Layout& layout) {
  std::uint64_t bytes = tensor_text.size() + text_bytes(tensor.name) +
                        safetensors_name(tensor.dtype).size() + text_bytes(tensor.alias_of) +
                        digits(tensor.member) +
                        range_bytes(tensor.extent, layout.members[tensor.member].extent.offset);
  // The shape twice, and as many zeros for the place.
  for (const std::int64_t dimension : tensor.shape)
    bytes += 2 * digits(static_cast<std::uint64_t>(dimension)) + 1;
  if (!tensor.shape.empty()) bytes += 3 * (tensor.shape.size() - 1);
  return bytes;
}

}  // namespace

std::uint64_t manifest_entry_bytes(const ShardRecord& record) {
  const Layout& layout = record.layout;
  std::uint64_t bytes = shard_text.size() + 2 * digest_digits + digits(record.id.rank) +
                        digits(layout.version) + digits(layout.slot_bytes) +
                        digits(layout.blob_capacity) + digits(record.bytes) +
                        digits(record.chunk_bytes) + crc_bytes * record.chunk_crcs.size();
  const auto extents = member_extents(record);
  for (std::size_t index = 0; index < extents.size(); ++index) {
    const Member& member = layout.members[index];
    bytes += member_text.size() + text_bytes(member.file_name) + digits(member.extent.offset) +
             digits(member.header_bytes) + digits(extents[index].bytes) + crc_bytes;
  }
  for (const TensorPlace& tensor : layout.tensors) bytes += tensor_entry_bytes(tensor, layout);
  for (std::size_t index = 0; index < record.blobs.size(); ++index) {
    bytes += blob_text.size() + text_bytes(record.blob_names[index]) +
             range_bytes(record.blobs[index], extents.back().offset);
  }
  return bytes;
}

std::uint64_t manifest_frame_bytes(std::string_view job, std::span<const std::string> nodes) {
  std::uint64_t bytes = frame_bytes + text_bytes(job);
  for (const std::string& node : nodes) bytes += text_bytes(node) + 1;
  return bytes;
}

}  // namespace ckpt::format
