// The instructions of the pickle machine are those of protocol 2 (PEP 307); each is one letter.
#include "format/torch_pickle_write.hpp"

#include <algorithm>
#include <string>

#include "base/assert.hpp"
#include "format/torch_names.hpp"

namespace ckpt::format {

namespace {

class Pickle {
 public:
  void op(char letter) { bytes_.push_back(letter); }
  void mark() { op('('); }
  void tuple() { op('t'); }  // Of all since the mark.
  void little(std::uint64_t value, std::size_t bytes) {
    for (std::size_t index = 0; index < bytes; ++index)
      bytes_.push_back(static_cast<char>(value >> (8 * index)));
  }
  void text(std::string_view value) {
    CKPT_ASSERT(value.size() <= UINT32_MAX);
    op('X');
    little(value.size(), 4);
    bytes_ += value;
  }
  void integer(std::uint64_t value) {
    CKPT_ASSERT(value <= INT64_MAX);
    if (value <= UINT8_MAX) {
      op('K');
      little(value, 1);
    } else if (value <= INT32_MAX) {
      op('J');
      little(value, 4);
    } else {
      op('\x8a');
      little(8, 1);
      little(value, 8);
    }
  }
  void numbers(std::span<const std::uint64_t> values) {
    mark();
    for (const std::uint64_t value : values) integer(value);
    tuple();
  }
  // "torch.FloatStorage": the module, and what it has.
  void name(std::string_view full) {
    const std::size_t dot = full.rfind('.');
    CKPT_ASSERT(dot != std::string_view::npos);
    op('c');
    bytes_ += full.substr(0, dot);
    op('\n');
    bytes_ += full.substr(dot + 1);
    op('\n');
  }
  std::vector<std::byte> take() const {
    const auto bytes = std::as_bytes(std::span(bytes_));
    return {bytes.begin(), bytes.end()};
  }

 private:
  std::string bytes_;
};

template <class Names>
std::string_view name_in(const Names& names, DType dtype) {
  const auto found = std::ranges::find(names, dtype, &TorchName::dtype);
  return found == names.end() ? std::string_view() : found->name;
}

// A reference that torch.load resolves: ('storage', type, key, device, elements).
void put_storage(Pickle& pickle, const PickledTensor& tensor, std::string_view type) {
  pickle.mark();
  pickle.text("storage");
  pickle.name(type.empty() ? torch_untyped_storage : type);
  pickle.text(tensor.storage);
  pickle.text("cpu");
  pickle.integer(type.empty() ? tensor.storage_bytes
                              : tensor.storage_bytes / size_of(tensor.dtype));
  pickle.tuple();
  pickle.op('Q');
}

std::vector<std::uint64_t> row_major_strides(std::span<const std::uint64_t> shape) {
  std::vector<std::uint64_t> strides(shape.size());
  std::uint64_t stride = 1;
  for (std::size_t index = shape.size(); index > 0; --index) {
    strides[index - 1] = stride;
    stride *= std::max<std::uint64_t>(shape[index - 1], 1);
  }
  return strides;
}

// (storage, offset, shape, strides, requires_grad, hooks[, type]), given to the function.
void put_tensor(Pickle& pickle, const PickledTensor& tensor) {
  CKPT_ASSERT(tensor.offset == 0);
  const std::string_view type = name_in(torch_storages, tensor.dtype);
  const std::vector<std::uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
  pickle.name(type.empty() ? torch_rebuild_typed_tensor : torch_rebuild_tensor);
  pickle.mark();
  put_storage(pickle, tensor, type);
  pickle.integer(0);
  pickle.numbers(shape);
  pickle.numbers(row_major_strides(shape));
  pickle.op('\x89');  // False.
  pickle.name(torch_ordered_dict);
  pickle.op(')');  // An empty tuple.
  pickle.op('R');
  if (type.empty()) pickle.name(name_in(torch_dtypes, tensor.dtype));
  pickle.tuple();
  pickle.op('R');
}

}  // namespace

std::vector<std::byte> write_torch_pickle(std::span<const PickledTensor> tensors) {
  Pickle pickle;
  pickle.op('\x80');  // The protocol.
  pickle.little(2, 1);
  pickle.op('}');
  pickle.mark();
  for (const PickledTensor& tensor : tensors) {
    pickle.text(tensor.name);
    put_tensor(pickle, tensor);
  }
  pickle.op('u');
  pickle.op('.');
  return pickle.take();
}

}  // namespace ckpt::format
