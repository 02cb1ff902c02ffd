// Options: those of the library, from keyword arguments of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <ckpt/options.hpp>

namespace ckpt::python {

// Each value as Python has it, or as text in the words of the environment: 64 << 30 or "64GiB".
// Raises Failure: a name that is no option, a value of the wrong type or that cannot be read.
Options options_from(const nanobind::dict& given);

}  // namespace ckpt::python
