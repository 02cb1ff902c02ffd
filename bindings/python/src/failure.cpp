#include "failure.hpp"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace ckpt::python {

namespace {

const char* class_name(Errc code) {
  switch (code) {
    case Errc::invalid_argument:
      return "InvalidArgument";
    case Errc::not_found:
      return "NotFound";
    case Errc::corruption:
      return "Corruption";
    case Errc::io:
      return "StorageError";
    case Errc::unavailable:
      return "Unavailable";
    case Errc::exhausted:
      return "Exhausted";
    case Errc::cancelled:
      return "Cancelled";
    case Errc::unsupported:
      return "Unsupported";
    case Errc::version_mismatch:
      return "VersionMismatch";
  }
  return "CheckpointError";
}

}  // namespace

void register_failures() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Failure& failure) {
      const nb::object errors = nb::module_::import_("libckpt.errors");
      const nb::object type = errors.attr(class_name(failure.code()));
      PyErr_SetString(type.ptr(), failure.what());
    }
  });
}

}  // namespace ckpt::python
