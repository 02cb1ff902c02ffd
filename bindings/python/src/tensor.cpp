#include "tensor.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "failure.hpp"

namespace nb = nanobind;

namespace ckpt::python {

namespace {

template <class T>
T value_or_empty(const nb::handle& given) {
  return given.is_none() ? T() : nb::cast<T>(given);
}

Piece piece_from(const nb::handle& given) {
  Piece piece;
  piece.global_shape = nb::cast<std::vector<std::uint64_t>>(given[0]);
  piece.offset = value_or_empty<std::vector<std::uint64_t>>(given[1]);
  piece.flat_begin = value_or_empty<std::optional<std::uint64_t>>(given[2]);
  piece.order = value_or_empty<std::vector<std::uint8_t>>(given[3]);
  piece.copy = nb::cast<std::uint32_t>(given[4]);
  piece.copies = nb::cast<std::uint32_t>(given[5]);
  return piece;
}

}  // namespace

NamedTensor tensor_from(nb::handle item) {
  NamedTensor named;
  named.name = nb::cast<std::string>(item[0]);
  TensorRef& tensor = named.tensor;
  tensor.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(item[1]));
  const auto type = nb::cast<std::string>(item[2]);
  const auto dtype = dtype_from_safetensors(type);
  if (!dtype)
    throw Failure(Errc::unsupported, "tensor \"" + named.name + "\": there is no type " + type);
  tensor.dtype = *dtype;
  tensor.shape = nb::cast<std::vector<std::int64_t>>(item[3]);
  const int gpu = nb::cast<int>(item[4]);
  if (gpu >= 0) {
    tensor.location = Location::cuda;
    tensor.device_index = gpu;
  }
  tensor.guarded = nb::cast<bool>(item[5]);
  if (nb::len(item) > 6 && !item[6].is_none()) tensor.piece = piece_from(item[6]);
  return named;
}

std::string larger_name_of(const nb::handle& item) {
  const NamedTensor named = tensor_from(item);
  const TensorRef& tensor = named.tensor;
  if (!tensor.piece) return named.name;
  return tensor_name(named.name, *tensor.piece, tensor.dtype, tensor.shape);
}

nb::tuple describe(const StoredTensor& tensor) {
  nb::list shape;
  for (const std::int64_t dimension : tensor.shape) shape.append(dimension);
  nb::object whole = nb::none();
  if (tensor.piece != nullptr) {
    nb::list dimensions;
    for (const std::uint64_t dimension : tensor.piece->global_shape) dimensions.append(dimension);
    const std::string larger = tensor_name(tensor.name, *tensor.piece, tensor.dtype, tensor.shape);
    whole = nb::make_tuple(larger, nb::tuple(dimensions));
  }
  return nb::make_tuple(
      nb::str(tensor.name.data(), tensor.name.size()),
      nb::str(safetensors_name(tensor.dtype).data(), safetensors_name(tensor.dtype).size()),
      nb::tuple(shape), nb::str(tensor.alias_of.data(), tensor.alias_of.size()), std::move(whole));
}

}  // namespace ckpt::python
