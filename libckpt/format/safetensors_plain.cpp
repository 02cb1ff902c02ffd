#include "format/safetensors_plain.hpp"

#include <fmt/format.h>

#include <set>
#include <string_view>

#include "base/units.hpp"
#include "format/codec.hpp"
#include "format/json.hpp"
#include "format/safetensors_header.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view metadata_key = "__metadata__";
constexpr std::uint64_t alignment = 8;  // The largest element has this size.

Status check_plain_name(const std::string& name) {
  if (name.empty() || name == metadata_key || !is_utf8(name))
    return fail(Errc::invalid_argument,
                fmt::format("\"{}\" cannot be a tensor's name in a safetensors file", name));
  return {};
}

void append_member(std::string& out, std::string_view name) {
  if (out.back() != '{') out += ",";
  append_json(out, name);
  out += ":";
}

void append_plain(std::string& out, const PlainTensor& tensor, std::uint64_t offset) {
  append_member(out, tensor.name);
  out += R"({"dtype":")";
  out += safetensors_name(tensor.dtype);
  out += R"(","shape":[)";
  for (std::size_t dimension = 0; dimension < tensor.shape.size(); ++dimension) {
    if (dimension > 0) out += ",";
    append_json(out, tensor.shape[dimension]);
  }
  out += R"(],"data_offsets":[)";
  append_json(out, offset);
  out += ",";
  append_json(out, offset + tensor.bytes);
  out += "]}";
}

}  // namespace

Result<std::vector<std::byte>> plain_header(
    std::span<const PlainTensor> tensors,
    std::span<const std::pair<std::string, std::string>> metadata) {
  std::string json = "{";
  append_member(json, metadata_key);
  json += "{";
  for (const auto& [key, value] : metadata) {
    append_member(json, key);
    append_json(json, value);
  }
  json += "}";
  std::set<std::string_view> names;
  std::uint64_t offset = 0;
  for (const PlainTensor& tensor : tensors) {
    CKPT_CHECK(check_plain_name(tensor.name));
    if (!names.insert(tensor.name).second)
      return fail(Errc::invalid_argument, fmt::format("\"{}\" is there twice", tensor.name));
    append_plain(json, tensor, offset);
    offset += tensor.bytes;
  }
  json += "}";
  json.resize(align_up(json.size(), alignment), ' ');
  if (json.size() > safetensors_json_bytes_max)
    return fail(Errc::exhausted,
                fmt::format("the header of a safetensors file has at most {} bytes, {} are needed",
                            safetensors_json_bytes_max, json.size()));
  Writer writer;
  writer.u64(json.size());
  writer.raw(std::as_bytes(std::span(json)));
  return writer.take();
}

}  // namespace ckpt::format
