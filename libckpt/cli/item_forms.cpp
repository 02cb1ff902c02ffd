#include "cli/item_forms.hpp"

#include <fmt/format.h>
#include <isa-l/igzip_lib.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/units.hpp"
#include "format/piece.hpp"
#include "gather/piece_reader.hpp"

namespace ckpt::cli {

namespace {

// A structure of millions of tensors takes less; more of it is no structure of ours.
constexpr std::uint64_t structure_bytes_max = 1 * GiB;
constexpr std::size_t inflate_step = 4 * MiB;

Unexpected unreadable(std::string_view why) {
  return fail(
      Errc::corruption,
      fmt::format("the structure of the items (\"{}\") cannot be read: {}", items_blob, why));
}

// Large structures are deflated, as zlib does it.
Result<std::string> inflated(std::span<const std::byte> content) {
  const auto state = std::make_unique<inflate_state>();
  isal_inflate_init(state.get());
  state->crc_flag = ISAL_ZLIB;
  std::vector<std::byte> given(content.begin(), content.end());
  state->next_in = reinterpret_cast<std::uint8_t*>(given.data());
  state->avail_in = static_cast<std::uint32_t>(given.size());
  std::string text;
  while (state->block_state != ISAL_BLOCK_FINISH) {
    if (text.size() >= structure_bytes_max) return unreadable("it is too large");
    const std::size_t there = text.size();
    text.resize(there + inflate_step);
    state->next_out = reinterpret_cast<std::uint8_t*>(text.data() + there);
    state->avail_out = inflate_step;
    if (isal_inflate(state.get()) != ISAL_DECOMP_OK) return unreadable("it does not inflate");
    const std::size_t added = inflate_step - state->avail_out;
    text.resize(there + added);
    if (added == 0 && state->avail_in == 0 && state->block_state != ISAL_BLOCK_FINISH)
      return unreadable("it is cut off");
  }
  return text;
}

using Node = nlohmann::json;

std::vector<std::uint64_t> numbers_in(const Node& node, const char* key) {
  std::vector<std::uint64_t> numbers;
  const auto list = node.find(key);
  if (list == node.end() || !list->is_array()) return numbers;
  for (const Node& each : *list)
    if (each.is_number_unsigned()) numbers.push_back(each.get<std::uint64_t>());
  return numbers;
}

ItemForm form_of(const Node& node) {
  ItemForm form;
  form.shape = numbers_in(node, "shape");
  for (const std::uint64_t dimension : numbers_in(node, "order"))
    form.order.push_back(static_cast<std::uint8_t>(dimension));
  for (const auto& [key, value] : node.items())  // The framework's name is the key of the type.
    if (key != "t" && value.is_string()) form.type = value.get<std::string>();
  return form;
}

// A node with a text as "t" describes a tensor. Parts of larger tensors say themselves where they
// lie. No recursion: a damaged structure may be deep.
ItemForms forms_in(const Node& structure) {
  ItemForms forms;
  std::vector<const Node*> left = {&structure};
  while (!left.empty()) {
    const Node& node = *left.back();
    left.pop_back();
    if (node.is_object()) {
      const auto name = node.find("t");
      if (name != node.end() && name->is_string()) {
        if (!node.value("part", false)) forms[name->get<std::string>()] = form_of(node);
        continue;
      }
    }
    if (!node.is_structured()) continue;
    for (const Node& each : node) left.push_back(&each);
  }
  return forms;
}

}  // namespace

Result<ItemForms> parse_item_forms(std::span<const std::byte> structure) {
  if (structure.empty()) return ItemForms();
  std::string text;
  if (static_cast<char>(structure.front()) == '{') {
    text.assign(reinterpret_cast<const char*>(structure.data()), structure.size());
  } else {
    CKPT_TRY(text, inflated(structure));
  }
  const Node parsed = Node::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return unreadable("it is no JSON object");
  return forms_in(parsed);
}

Task<ItemForms> read_item_forms(gather::ShardSource& source,
                                std::shared_ptr<const format::ShardRecord> record) {
  const auto name = std::ranges::find(record->blob_names, items_blob);
  if (name == record->blob_names.end()) co_return ItemForms();
  const format::Extent& blob =
      record->blobs[static_cast<std::size_t>(name - record->blob_names.begin())];
  std::vector<std::byte> content(blob.bytes);
  gather::WantedBytes wanted;
  wanted.rank = record->id.rank;
  wanted.offset = blob.offset;
  wanted.target = content;
  gather::Wants wants;
  if (!content.empty()) wants.bytes.push_back(wanted);
  const gather::ReaderRank reader{record->id.rank, source.shard_count()};
  const storage::TransferHooks hooks;
  CKPT_CO_CHECK(co_await gather::read_pieces(source, reader, std::move(wants), hooks));
  auto forms = parse_item_forms(content);
  if (!forms)
    co_return fail(std::move(forms).error().context(fmt::format("rank {}", record->id.rank)));
  co_return forms;
}

namespace {

// As torch names them.
std::string_view torch_type(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return "bool";
    case DType::u8:
      return "uint8";
    case DType::i8:
      return "int8";
    case DType::f8_e4m3:
      return "float8_e4m3fn";
    case DType::f8_e5m2:
      return "float8_e5m2";
    case DType::f8_e8m0:
      return "float8_e8m0fnu";
    case DType::u16:
      return "uint16";
    case DType::i16:
      return "int16";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::u32:
      return "uint32";
    case DType::i32:
      return "int32";
    case DType::f32:
      return "float32";
    case DType::u64:
      return "uint64";
    case DType::i64:
      return "int64";
    case DType::f64:
      return "float64";
    case DType::c64:
      return "complex64";
  }
  return "uint8";
}

}  // namespace

std::string structure_of(std::string_view item, const std::vector<NamedForm>& tensors) {
  using Ordered = nlohmann::ordered_json;
  Ordered state = Ordered::object();
  for (const NamedForm& tensor : tensors)
    state[tensor.key] = {
        {"t", tensor.stored_name}, {"torch", torch_type(tensor.dtype)}, {"shape", tensor.shape}};
  Ordered structure;
  structure[std::string(item)]["s"]["d"] = std::move(state);
  return structure.dump();
}

Result<std::vector<std::uint64_t>> take_form(const ItemForm& form, gather::TensorToRead& source) {
  const auto is_wrong = [&](const char* what) {
    return fail(Errc::corruption,
                fmt::format("tensor \"{}\": it has another {} than the structure of the items says",
                            source.name, what));
  };
  const std::size_t dimensions = form.shape.size();
  // One that is stored as its bytes has these as a further dimension, which stays the fastest.
  const bool is_bytes = source.dtype == DType::u8 && source.shape.size() == dimensions + 1;
  std::vector<std::uint8_t> order = form.order;
  if (order.empty()) {
    order.resize(dimensions);
    std::iota(order.begin(), order.end(), std::uint8_t{0});
  }
  if (!format::is_order(order, dimensions)) return is_wrong("order");
  std::vector<std::uint64_t> shape = form.shape;
  if (is_bytes) {
    order.push_back(static_cast<std::uint8_t>(dimensions));
    shape.push_back(source.shape.back());
  }
  if (source.shape.size() != shape.size()) return is_wrong("number of dimensions");
  std::vector<std::uint8_t> wanted(order.size());  // Where each dimension is among the stored ones.
  for (std::size_t at = 0; at < order.size(); ++at) {
    if (source.shape[at] != shape[order[at]]) return is_wrong("shape");
    wanted[order[at]] = static_cast<std::uint8_t>(at);
  }
  if (!form.order.empty()) source.order = std::move(wanted);
  return shape;
}

}  // namespace ckpt::cli
