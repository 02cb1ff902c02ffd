#include "options.hpp"

#include <nanobind/stl/string.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "failure.hpp"

namespace nb = nanobind;

namespace ckpt::python {

namespace {

bool is_duration(std::string_view name) {
  return name.ends_with("_deadline");
}
bool is_interval(std::string_view name) {
  return name.ends_with("_interval");
}

[[noreturn]] void refuse(const std::string& name, nb::handle value, std::string_view problem) {
  throw Failure(Errc::invalid_argument, "option " + name + ": " +
                                            nb::cast<std::string>(nb::repr(value)) + " " +
                                            std::string(problem));
}

std::string seconds_as_text(const std::string& name, nb::handle value) {
  const auto seconds = nb::cast<double>(value);
  const bool is_good = seconds > 0 && seconds < 1e9;  // Not: NaN, infinity.
  if (!is_good) refuse(name, value, "is no number of seconds above 0 and below 1e9");
  return std::to_string(std::llround(seconds * 1000)) + "ms";
}

std::string joined(nb::handle values) {
  std::string out;
  for (const nb::handle value : nb::iter(values))
    out += (out.empty() ? "" : ",") + nb::cast<std::string>(value);
  return out;
}

// A value in the words of the environment and of the file, which all languages share.
std::string text_of(const std::string& name, nb::handle value) {
  if (value.is_none() && is_interval(name)) return "never";
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value) ? "true" : "false";
  const bool is_number = nb::isinstance<nb::float_>(value) || PyIndex_Check(value.ptr()) != 0;
  if (is_number && is_duration(name)) return seconds_as_text(name, value);
  if (PyIndex_Check(value.ptr()) != 0) {
    const nb::object whole = nb::steal(PyNumber_Index(value.ptr()));
    if (whole.is_valid()) return nb::cast<std::string>(nb::str(whole));
    PyErr_Clear();  // A tensor of several elements, say.
    refuse(name, value, "is of the wrong type");
  }
  if (nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value)) return joined(value);
  if (nb::hasattr(value, "__fspath__")) {
    return nb::cast<std::string>(nb::steal(PyOS_FSPath(value.ptr())));
  }
  refuse(name, value, "is of the wrong type");
}

}  // namespace

Options options_from(const nb::dict& given) {
  Options options;
  for (const auto& [key, value] : given) {
    const auto name = nb::cast<std::string>(key);
    std::string text;
    try {
      text = text_of(name, value);
    } catch (const nb::cast_error&) {
      refuse(name, value, "is of the wrong type");
    }
    if (text.find('\0') != std::string::npos) refuse(name, value, "holds a NUL byte");
    check(options.set(name, text));
  }
  return options;
}

}  // namespace ckpt::python
