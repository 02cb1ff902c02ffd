// Options: those of the library, from keyword arguments of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <ckpt/options.hpp>

namespace ckpt::python {

// Raises Failure: a name that is no option, a value of the wrong type, an interval that is none.
Options options_from(const nanobind::dict& given);

}  // namespace ckpt::python
