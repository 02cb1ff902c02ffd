// Tensor: how Python names a tensor: (name, address, type, shape, GPU or -1, guarded).
#pragma once

#include <nanobind/nanobind.h>

#include <ckpt/framework.hpp>

namespace ckpt::python {

NamedTensor tensor_from(nanobind::handle item);
// (name, type, shape, alias_of): what a step holds.
nanobind::tuple describe(const StoredTensor& tensor);

}  // namespace ckpt::python
