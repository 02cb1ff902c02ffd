#include "format/torch_pickle_write.hpp"

#include <algorithm>
#include <string_view>

#include "base/assert.hpp"
#include "format/pickle_writer.hpp"
#include "format/torch_names.hpp"

namespace ckpt::format {

namespace {

template <class Names>
std::string_view name_in(const Names& names, DType dtype) {
  const auto found = std::ranges::find(names, dtype, &TorchName::dtype);
  return found == names.end() ? std::string_view() : found->name;
}

// A reference that torch.load resolves: ('storage', type, key, device, elements).
void put_storage(PickleWriter& pickle, const PickledTensor& tensor, std::string_view type) {
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
void put_pickled(PickleWriter& pickle, const PickledTensor& tensor) {
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

std::string_view torch_dtype_name(DType dtype) {
  return name_in(torch_dtypes, dtype);
}

std::vector<std::byte> write_torch_tensor(const PickledTensor& tensor) {
  PickleWriter pickle;
  put_pickled(pickle, tensor);
  return pickle.take();
}

std::vector<std::byte> write_torch_pickle(std::span<const PickledTensor> tensors) {
  PickleWriter pickle;
  pickle.op('}');
  pickle.mark();
  for (const PickledTensor& tensor : tensors) {
    pickle.text(tensor.name);
    put_pickled(pickle, tensor);
  }
  pickle.op('u');
  return pickle.take();
}

}  // namespace ckpt::format
