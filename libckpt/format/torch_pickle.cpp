// The names are those that torch.save writes for a dictionary of tensors.
#include "format/torch_pickle.hpp"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

#include "format/json.hpp"
#include "format/pickle_machine.hpp"
#include "format/torch_names.hpp"

namespace ckpt::format {

namespace {

constexpr std::size_t depth_max = 64;  // Containers in one another.

constexpr std::string_view rebuild_parameter = "torch._utils._rebuild_parameter";
constexpr std::string_view torch_size = "torch.Size";

std::optional<DType> type_in(std::span<const TorchName> list, std::string_view name) {
  for (const TorchName& each : list)
    if (each.name == name) return each.dtype;
  return std::nullopt;
}

bool is_known(std::string_view name) {
  return type_in(torch_storages, name) || type_in(torch_dtypes, name) ||
         name == torch_untyped_storage || name == torch_rebuild_tensor ||
         name == torch_rebuild_typed_tensor || name == rebuild_parameter ||
         name == torch_ordered_dict || name == torch_size;
}

class TorchMachine final : public PickleMachine {
 public:
  explicit TorchMachine(std::span<const std::byte> pickle) : PickleMachine(pickle) {}
  Result<PickledTensors> tensors();

 private:
  struct Made {
    PickledTensor tensor;
    bool is_row_major = true;
  };
  Status push_name(std::string name) override;
  Status load_persistent() override;
  Status call() override;
  Status make_tensor(const Value& arguments, bool is_typed);
  Status check_place(Made& made, const Value& strides) const;
  Result<std::vector<std::int64_t>> numbers(Index index) const;
  Status take(const Made& made, const std::string& name);
  Status collect(Index index, const std::string& name, std::size_t depth);

  std::vector<Made> made_;
  PickledTensors found_;
  std::size_t visited_ = 0;
};

Status TorchMachine::push_name(std::string name) {
  if (!is_known(name))
    return refused(
        fmt::format("it needs {}, and code is never run: save dense tensors of the usual types "
                    "alone, as model.state_dict()",
                    is_utf8(name) ? name.substr(0, 100) : "a name that is no text"));
  push({Kind::name, 0, std::move(name), {}, {}});
  return {};
}

// ('storage', type, key, device, elements)
Status TorchMachine::load_persistent() {
  CKPT_TRY(const Index top, pop());
  const Value& tuple = at(top);
  const auto item = [&](std::size_t index) -> const Value& { return at(tuple.items[index]); };
  const bool is_one = tuple.kind == Kind::tuple && tuple.items.size() == 5 &&
                      item(0).kind == Kind::text && item(0).text == "storage" &&
                      item(1).kind == Kind::name && item(2).kind == Kind::text &&
                      item(4).kind == Kind::integer && item(4).integer >= 0;
  if (!is_one) return broken("a reference that is none to a storage");
  Value storage;
  storage.kind = Kind::storage;
  storage.dtype = type_in(torch_storages, item(1).text);
  if (!storage.dtype && item(1).text != torch_untyped_storage)
    return refused(fmt::format("a storage of type {}", item(1).text));
  storage.text = item(2).text;
  const auto bytes = checked_multiply(static_cast<std::uint64_t>(item(4).integer),
                                      storage.dtype ? size_of(*storage.dtype) : 1);
  if (!bytes || *bytes > slot_bytes_max) return broken("a storage that is too large");
  storage.integer = static_cast<std::int64_t>(*bytes);
  push(std::move(storage));
  return {};
}

Result<std::vector<std::int64_t>> TorchMachine::numbers(Index index) const {
  const Value& tuple = at(index);
  if (tuple.kind != Kind::tuple || tuple.items.size() > dimensions_max)
    return broken("a tensor without its shape or strides");
  std::vector<std::int64_t> out;
  for (const Index each : tuple.items) {
    if (at(each).kind != Kind::integer || at(each).integer < 0)
      return broken("a shape or a stride that is no number");
    out.push_back(at(each).integer);
  }
  return out;
}

// (storage, offset, shape, strides, requires_grad, hooks[, dtype or metadata])
Status TorchMachine::make_tensor(const Value& arguments, bool is_typed) {
  const auto item = [&](std::size_t index) -> const Value& { return at(arguments.items[index]); };
  const std::size_t count = arguments.items.size();
  const bool is_one = count >= (is_typed ? 7u : 5u) && count <= 8 &&
                      item(0).kind == Kind::storage && item(1).kind == Kind::integer &&
                      item(1).integer >= 0;
  if (!is_one) return broken("a tensor without a storage");
  Made made;
  PickledTensor& tensor = made.tensor;
  tensor.storage = item(0).text;
  tensor.storage_bytes = static_cast<std::uint64_t>(item(0).integer);
  const auto dtype = is_typed ? type_in(torch_dtypes, item(6).text) : item(0).dtype;
  if (!dtype) return refused("a tensor of a type that is not known");
  tensor.dtype = *dtype;
  CKPT_TRY(tensor.shape, numbers(arguments.items[2]));
  const auto offset =
      checked_multiply(static_cast<std::uint64_t>(item(1).integer), size_of(*dtype));
  if (!offset) return broken("a tensor outside of its storage");
  tensor.offset = *offset;
  CKPT_CHECK(check_place(made, at(arguments.items[3])));
  made_.push_back(std::move(made));
  push({Kind::tensor, static_cast<std::int64_t>(made_.size() - 1), {}, {}, {}});
  return {};
}

Status TorchMachine::check_place(Made& made, const Value& strides) const {
  PickledTensor& tensor = made.tensor;
  const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
  if (!bytes) return broken("a tensor whose size cannot be counted");
  if (strides.kind != Kind::tuple || strides.items.size() != tensor.shape.size())
    return broken("a tensor without a stride for each dimension");
  if (*bytes == 0) {
    tensor.offset = 0;
    return {};
  }
  std::uint64_t expected = 1;
  for (std::size_t index = tensor.shape.size(); index > 0; --index) {
    const Value& stride = at(strides.items[index - 1]);
    const auto dimension = static_cast<std::uint64_t>(tensor.shape[index - 1]);
    if (stride.kind != Kind::integer || stride.integer < 0) return broken("a stride of no number");
    // That of a dimension of one element has no meaning.
    if (dimension != 1 && static_cast<std::uint64_t>(stride.integer) != expected)
      made.is_row_major = false;
    expected *= dimension;
  }
  const bool fits =
      *bytes <= tensor.storage_bytes && tensor.offset <= tensor.storage_bytes - *bytes;
  if (made.is_row_major && !fits) return broken("a tensor outside of its storage");
  return {};
}

// Applies a name to a tuple of arguments.
Status TorchMachine::call() {
  CKPT_TRY(const Index given, pop());
  CKPT_TRY(const Index callee, pop());
  const Value arguments = at(given);
  const std::string name = at(callee).text;
  if (at(callee).kind != Kind::name || arguments.kind != Kind::tuple)
    return broken("a call of what is no name");
  if (name == torch_rebuild_tensor || name == torch_rebuild_typed_tensor)
    return make_tensor(arguments, name == torch_rebuild_typed_tensor);
  if (name == rebuild_parameter && !arguments.items.empty() &&
      at(arguments.items[0]).kind == Kind::tensor) {
    push_known(arguments.items[0]);
    return {};
  }
  if (name == torch_ordered_dict && arguments.items.empty()) {
    push({Kind::dict, 0, {}, {}, {}});
    return {};
  }
  if (name == torch_size && arguments.items.size() == 1) {
    push_known(arguments.items[0]);
    return {};
  }
  return refused(fmt::format("it calls {} in a way that is not known", name));
}

Status TorchMachine::take(const Made& made, const std::string& name) {
  PickledTensor tensor = made.tensor;
  tensor.name = name.empty() ? "tensor" : name;
  if (!made.is_row_major)
    return refused(
        fmt::format("the elements of tensor \"{}\" do not lie in row-major order: save "
                    "its contiguous() copy",
                    tensor.name));
  found_.tensors.push_back(std::move(tensor));
  return {};
}

Status TorchMachine::collect(Index index, const std::string& name, std::size_t depth) {
  const Value& value = at(index);
  if (++visited_ > tensors_max) return broken("too many values");
  if (name.size() > name_bytes_max) return broken("a name that is too long");
  if (value.kind == Kind::tensor) return take(made_[static_cast<std::size_t>(value.integer)], name);
  const bool is_dict = value.kind == Kind::dict;
  if (!is_dict && value.kind != Kind::list && value.kind != Kind::tuple) {
    ++found_.left_out;
    return {};
  }
  if (depth == depth_max) return broken("containers in too many others");
  for (std::size_t place = 0; place < value.items.size(); ++place) {
    std::string key = std::to_string(place);
    if (is_dict) {
      const Value& given = at(value.items[place]);
      if (given.kind != Kind::text && given.kind != Kind::integer)
        return refused("a key that is neither text nor a number");
      key = given.kind == Kind::text ? given.text : std::to_string(given.integer);
      ++place;  // Its value; extend() takes no key without one.
    }
    const std::string path = name.empty() ? key : name + "." + key;
    CKPT_CHECK(collect(value.items[place], path, depth + 1));
  }
  return {};
}

Result<PickledTensors> TorchMachine::tensors() {
  CKPT_TRY(const Index top, run());
  CKPT_CHECK(collect(top, "", 0));
  return std::move(found_);
}

}  // namespace

Result<PickledTensors> read_torch_pickle(std::span<const std::byte> pickle) {
  if (pickle.size() > torch_pickle_bytes_max)
    return fail(Errc::unsupported, "pickle of tensors: it is too large");
  return TorchMachine(pickle).tensors();
}

}  // namespace ckpt::format
