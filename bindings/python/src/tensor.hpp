// Tensor: how Python names a tensor: (name, address, type, shape, GPU or -1, guarded), and behind
// these, for a part of a larger one, (global shape, offset or None, begin in it as flattened or
// None, order of the dimensions or None, number of the copy, number of copies or 0).
#pragma once

#include <nanobind/nanobind.h>

#include <ckpt/framework.hpp>
#include <string>

namespace ckpt::python {

NamedTensor tensor_from(nanobind::handle item);
// The name of the tensor that it is a part of, or its own.
std::string larger_name_of(const nanobind::handle& item);
// (name, type, shape, alias_of, None or (name, shape) of what it is a part of): a tensor in a step.
nanobind::tuple describe(const StoredTensor& tensor);

}  // namespace ckpt::python
