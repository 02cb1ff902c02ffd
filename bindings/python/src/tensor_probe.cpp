#include "tensor_probe.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "failure.hpp"

namespace nb = nanobind;

namespace ckpt::python {

namespace {

// From here to exchange_of(): the binary interface of DLPack, major version 1.
constexpr const char* capsule_name = "dlpack_exchange_api";
constexpr std::uint32_t major_version = 1;
constexpr std::uint8_t complex_code = 5;

struct View {
  void* data;
  std::int32_t device_type, device_index;
  std::int32_t dimensions;
  std::uint8_t type_code, type_bits;
  std::uint16_t type_lanes;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
static_assert(sizeof(View) == 48);

struct Exchange {
  std::uint32_t major, minor;
  Exchange* older;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*view_of)(void* object, View* view);  // Borrows from the object; may be null.
  void* current_stream;
};

// Null: none that we know.
const Exchange* exchange_of(const nb::object& api) {
  if (!PyCapsule_IsValid(api.ptr(), capsule_name)) return nullptr;
  auto* exchange = static_cast<Exchange*>(PyCapsule_GetPointer(api.ptr(), capsule_name));
  while (exchange != nullptr && exchange->major > major_version) exchange = exchange->older;
  const bool is_usable =
      exchange != nullptr && exchange->major == major_version && exchange->view_of != nullptr;
  return is_usable ? exchange : nullptr;
}

// False: not a tensor that can be described so.
bool view_of(const Exchange& exchange, PyObject* tensor, View& view) {
  if (exchange.view_of(tensor, &view) == 0) return true;
  PyErr_Clear();
  return false;
}

std::span<const std::int64_t> shape_of(const View& view) {
  return {view.shape, static_cast<std::size_t>(view.dimensions)};
}

std::uint32_t type_of(const View& view) {
  return static_cast<std::uint32_t>(view.type_code) << 24 |
         static_cast<std::uint32_t>(view.type_bits) << 16 | view.type_lanes;
}

// Strides of dimensions with one element mean nothing, and no strides are those of a row.
bool is_contiguous(const View& view) {
  if (view.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (std::int32_t i = view.dimensions; i-- > 0;) {
    if (view.shape[i] != 1 && view.strides[i] != expected) return false;
    expected *= view.shape[i];
  }
  return true;
}

const void* data_of(const View& view) {
  return static_cast<const std::byte*>(view.data) + view.byte_offset;
}

std::span<const std::int64_t> strides_of(const View& view) {
  if (is_contiguous(view)) return {};
  return {view.strides, static_cast<std::size_t>(view.dimensions)};
}

bool has_form(const Look& look, const View& view) {
  return look.type == type_of(view) && std::ranges::equal(look.shape, shape_of(view)) &&
         std::ranges::equal(look.strides, strides_of(view));
}

bool has_place(const Look& look, const View& view) {
  return look.data == data_of(view) && look.device_type == view.device_type &&
         look.device_index == view.device_index;
}

// The values of such a tensor are the negated ones of its memory. It is the imaginary part of a
// conjugated one, every second number, so that it has gaps unless it is a single number.
bool may_be_negated(const Look& look) {
  const bool is_one = std::ranges::all_of(look.shape, [](std::int64_t n) { return n == 1; });
  return is_one || !look.strides.empty();
}

Look look_at(const View& view) {
  const auto shape = shape_of(view);
  const auto strides = strides_of(view);
  return {data_of(view),
          view.device_type,
          view.device_index,
          type_of(view),
          {shape.begin(), shape.end()},
          {strides.begin(), strides.end()}};
}

}  // namespace

Forms::Forms(nb::object api, const nb::list& tensors) : api_(std::move(api)) {
  const Exchange* exchange = exchange_of(api_);
  if (exchange == nullptr) return;
  looks_.reserve(tensors.size());
  for (const nb::handle tensor : tensors) {
    View view;
    if (!view_of(*exchange, tensor.ptr(), view)) return;
    looks_.push_back(look_at(view));
  }
  is_known_ = true;
}

bool Forms::fit(const nb::list& tensors) const {
  if (!is_known_ || tensors.size() != looks_.size()) return false;
  const Exchange& exchange = *exchange_of(api_);
  std::size_t index = 0;
  return std::ranges::all_of(tensors, [&](const nb::handle tensor) {
    View view;
    return view_of(exchange, tensor.ptr(), view) && has_form(looks_[index++], view);
  });
}

Places::Places(nb::object api, const nb::list& tensors) : api_(std::move(api)), is_neg_("is_neg") {
  const Exchange* exchange = exchange_of(api_);
  looks_.resize(tensors.size());
  for (std::size_t i = 0; i < looks_.size() && exchange != nullptr; ++i) {
    View view;
    const nb::object tensor = tensors[i];
    const bool is_seen = !tensor.is_none() && view_of(*exchange, tensor.ptr(), view);
    // Bits of a tensor that say how its bytes are meant: of complex ones there are two.
    if (!is_seen || view.type_code == complex_code) continue;
    looks_[i] = look_at(view);
  }
}

std::vector<std::size_t> Places::moved(const nb::list& tensors) const {
  if (tensors.size() != looks_.size())
    throw Failure(Errc::invalid_argument, "places are compared with another number of tensors");
  const Exchange* exchange = exchange_of(api_);
  std::vector<std::size_t> moved;
  for (std::size_t i = 0; i < looks_.size(); ++i) {
    const nb::object tensor = tensors[i];
    View view;
    const bool is_there = looks_[i].type != 0 && view_of(*exchange, tensor.ptr(), view) &&
                          has_form(looks_[i], view) && has_place(looks_[i], view);
    if (!is_there || is_negated(looks_[i], tensor)) moved.push_back(i);
  }
  return moved;
}

bool Places::is_negated(const Look& look, const nb::handle& tensor) const {
  if (!may_be_negated(look)) return false;
  const nb::object answer =
      nb::steal(PyObject_CallMethodObjArgs(tensor.ptr(), is_neg_.ptr(), nullptr));
  if (!answer.is_valid()) PyErr_Clear();
  return !answer.is_valid() || answer.ptr() != Py_False;
}

nb::object memory_of(const nb::object& api, const nb::handle& tensor_type, const nb::list& parts) {
  const Exchange* exchange = exchange_of(api);
  if (exchange == nullptr) return nb::none();
  std::vector<std::uint64_t> found;
  found.reserve(2 * parts.size());
  for (const nb::handle part : parts) {
    const int is_tensor = PyObject_IsInstance(part.ptr(), tensor_type.ptr());
    if (is_tensor < 0) throw nb::python_error();
    if (is_tensor == 0) continue;
    View view;
    if (!view_of(*exchange, part.ptr(), view)) return nb::none();
    std::uint64_t bits = std::uint64_t{view.type_bits} * view.type_lanes;
    for (const std::int64_t dimension : shape_of(view))
      bits *= static_cast<std::uint64_t>(dimension);
    found.push_back(reinterpret_cast<std::uintptr_t>(data_of(view)));
    found.push_back(bits / 8);
  }
  return nb::bytes(found.data(), found.size() * sizeof found.front());
}

}  // namespace ckpt::python
