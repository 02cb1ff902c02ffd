// Tensor: how Python names a tensor: (name, address, type, shape, GPU or -1, guarded), and behind
// these, for a part of a larger one, (global shape, offset or None, begin in it as flattened or
// None, order of the dimensions or None, number of the copy).
#pragma once

#include <nanobind/nanobind.h>

#include <ckpt/framework.hpp>

namespace ckpt::python {

NamedTensor tensor_from(nanobind::handle item);
// (name, type, shape, alias_of): a tensor in a step.
nanobind::tuple describe(const StoredTensor& tensor);

}  // namespace ckpt::python
