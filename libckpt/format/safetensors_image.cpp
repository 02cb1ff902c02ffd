#include "format/safetensors_image.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "format/codec.hpp"
#include "format/json.hpp"
#include "format/safetensors_header.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view header_label = "safetensors header";

Unexpected broken_tensor(std::string_view name, std::string_view problem) {
  return fail(Errc::corruption,
              fmt::format("{}: tensor \"{}\" {}", header_label, name.substr(0, 100), problem));
}

Result<std::vector<std::pair<std::string, std::string>>> read_metadata(JsonReader& reader) {
  std::vector<std::pair<std::string, std::string>> metadata;
  CKPT_CHECK(reader.begin_object());
  while (true) {
    std::string key;
    CKPT_TRY(const bool follows, reader.next_member(key));
    if (!follows) break;
    CKPT_TRY(auto value, reader.string());
    metadata.emplace_back(std::move(key), std::move(value));
  }
  std::vector<std::string_view> keys;
  for (const auto& [key, value] : metadata) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  if (std::adjacent_find(keys.begin(), keys.end()) != keys.end())
    return reader.problem("__metadata__ with a name twice");
  return metadata;
}

Result<std::vector<std::int64_t>> read_shape(JsonReader& reader) {
  std::vector<std::int64_t> shape;
  CKPT_CHECK(reader.begin_array());
  while (true) {
    CKPT_TRY(const bool follows, reader.next_element());
    if (!follows) return shape;
    if (shape.size() == dimensions_max) return reader.problem("too many dimensions");
    CKPT_TRY(const auto dimension, reader.integer());
    if (dimension > INT64_MAX) return reader.problem("a dimension above 63 bits");
    shape.push_back(static_cast<std::int64_t>(dimension));
  }
}

// The file's offsets count from the end of the header.
Result<Extent> read_offsets(JsonReader& reader) {
  std::array<std::uint64_t, 2> offsets{};
  CKPT_CHECK(reader.begin_array());
  for (auto& offset : offsets) {
    CKPT_TRY(const bool follows, reader.next_element());
    if (!follows) return reader.problem("data_offsets without two numbers");
    CKPT_TRY(offset, reader.integer());
  }
  CKPT_CHECK(reader.end_array());
  if (offsets[1] < offsets[0]) return reader.problem("data_offsets that go backwards");
  return Extent{offsets[0], offsets[1] - offsets[0]};
}

Result<ImageTensor> read_image_tensor(JsonReader& reader, std::string name) {
  ImageTensor tensor;
  tensor.name = std::move(name);
  if (tensor.name.size() > name_bytes_max) return reader.problem("a name that is too long");
  bool has_dtype = false;
  bool has_shape = false;
  bool has_offsets = false;
  CKPT_CHECK(reader.begin_object());
  while (true) {
    std::string key;
    CKPT_TRY(const bool follows, reader.next_member(key));
    if (!follows) break;
    if (key == "dtype" && !std::exchange(has_dtype, true)) {
      CKPT_TRY(const auto type, reader.string());
      const auto dtype = dtype_from_safetensors(type);
      if (!dtype)
        return fail(Errc::unsupported, fmt::format("{}: tensor \"{}\" has the type \"{}\"",
                                                   header_label, tensor.name, type.substr(0, 100)));
      tensor.dtype = *dtype;
    } else if (key == "shape" && !std::exchange(has_shape, true)) {
      CKPT_TRY(tensor.shape, read_shape(reader));
    } else if (key == "data_offsets" && !std::exchange(has_offsets, true)) {
      CKPT_TRY(tensor.extent, read_offsets(reader));
    } else {
      return reader.problem("a member that is unknown or comes twice");
    }
  }
  if (!has_dtype || !has_shape || !has_offsets)
    return broken_tensor(tensor.name, "lacks its dtype, shape or data_offsets");
  return tensor;
}

Status check_names(const std::vector<ImageTensor>& tensors) {
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t left, std::uint32_t right) {
    return tensors[left].name < tensors[right].name;
  });
  const auto repeated =
      std::adjacent_find(order.begin(), order.end(), [&](std::uint32_t left, std::uint32_t right) {
        return tensors[left].name == tensors[right].name;
      });
  if (repeated != order.end()) return broken_tensor(tensors[*repeated].name, "is there twice");
  return {};
}

// Sorts into file order. Tensors must follow one another without a gap from 0 to `data_bytes`.
Status check_cover(std::vector<ImageTensor>& tensors, std::uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const ImageTensor& left, const ImageTensor& right) {
    return std::pair(left.extent.offset, left.extent.bytes) <
           std::pair(right.extent.offset, right.extent.bytes);
  });
  std::uint64_t end = 0;
  for (const ImageTensor& tensor : tensors) {
    if (tensor.extent.offset != end)
      return broken_tensor(tensor.name, "overlaps another or leaves a hole");
    if (tensor_bytes(tensor.dtype, tensor.shape) != tensor.extent.bytes)
      return broken_tensor(tensor.name, "has another size than its shape");
    end = tensor.extent.end();
    if (end > data_bytes) return broken_tensor(tensor.name, "ends behind the end of the file");
  }
  if (end != data_bytes)
    return fail(Errc::corruption, fmt::format("{}: the tensors end at byte {} of {} of the data",
                                              header_label, end, data_bytes));
  return {};
}

}  // namespace

Result<std::uint64_t> safetensors_header_bytes(std::span<const std::byte> front,
                                               std::uint64_t file_bytes) {
  if (front.size() < safetensors_length_bytes || file_bytes < safetensors_length_bytes)
    return fail(Errc::corruption, fmt::format("{}: the file is too short", header_label));
  Reader reader(front.first(safetensors_length_bytes), header_label);
  const std::uint64_t json_bytes = reader.u64();
  if (json_bytes > safetensors_json_bytes_max || json_bytes > file_bytes - safetensors_length_bytes)
    return fail(Errc::corruption, fmt::format("{}: it claims {} bytes in a file of {}: this is no "
                                              "safetensors file, or a damaged one",
                                              header_label, json_bytes, file_bytes));
  return safetensors_length_bytes + json_bytes;
}

Result<SafetensorsImage> parse_safetensors(std::span<const std::byte> front,
                                           std::uint64_t file_bytes) {
  SafetensorsImage image;
  CKPT_TRY(image.header_bytes, safetensors_header_bytes(front, file_bytes));
  if (front.size() < image.header_bytes)
    return fail(Errc::corruption, fmt::format("{}: only {} of {} bytes", header_label, front.size(),
                                              image.header_bytes));
  const auto json =
      front.subspan(safetensors_length_bytes, image.header_bytes - safetensors_length_bytes);
  const std::string_view text(reinterpret_cast<const char*>(json.data()), json.size());
  JsonReader reader(text, header_label);
  if (!text.starts_with('{')) return reader.problem("it does not start with '{'");
  CKPT_CHECK(reader.begin_object());
  bool has_metadata = false;
  while (true) {
    std::string key;
    CKPT_TRY(const bool follows, reader.next_member(key));
    if (!follows) break;
    if (key == "__metadata__") {
      if (std::exchange(has_metadata, true)) return reader.problem("__metadata__ is there twice");
      CKPT_TRY(image.metadata, read_metadata(reader));
      continue;
    }
    if (image.tensors.size() == tensors_max)
      return fail(Errc::unsupported,
                  fmt::format("{}: more than {} tensors", header_label, tensors_max));
    CKPT_TRY(auto tensor, read_image_tensor(reader, std::move(key)));
    image.tensors.push_back(std::move(tensor));
  }
  CKPT_CHECK(reader.finish());
  CKPT_CHECK(check_names(image.tensors));
  CKPT_CHECK(check_cover(image.tensors, file_bytes - image.header_bytes));
  for (auto& tensor : image.tensors) tensor.extent.offset += image.header_bytes;
  return image;
}

}  // namespace ckpt::format
