#include "tree.hpp"

#include <nanobind/stl/string.h>

#include <cstring>

namespace nb = nanobind;

namespace ckpt::python {

namespace {

// Items are no deeper than `DEPTH_MAX` of items.py when a Tree is made of them, so neither is this.
bool is_exactly(const nb::handle& value, PyTypeObject* type) {
  return Py_TYPE(value.ptr()) == type;
}

bool is_plain(const nb::handle& value) {
  return value.is_none() || is_exactly(value, &PyBool_Type) || is_exactly(value, &PyLong_Type) ||
         is_exactly(value, &PyFloat_Type) || is_exactly(value, &PyUnicode_Type);
}

// Compares two plain values of one type. Floats by their bits: 0.0 is not -0.0, and NaN is itself.
bool is_same(PyObject* one, PyObject* other) {
  if (one == other) return true;
  if (is_exactly(one, &PyFloat_Type)) {
    const double a = PyFloat_AsDouble(one);
    const double b = PyFloat_AsDouble(other);
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
  const int is_equal = PyObject_RichCompareBool(one, other, Py_EQ);
  if (is_equal < 0) throw nb::python_error();
  return is_equal == 1;
}

bool is_same_key(PyObject* one, PyObject* other) {
  return one == other || (Py_TYPE(one) == Py_TYPE(other) && is_same(one, other));
}

nb::object pairs_of(const nb::handle& dictionary) {
  nb::object pairs = nb::steal(PyMapping_Items(dictionary.ptr()));
  if (!pairs.is_valid()) throw nb::python_error();
  return pairs;
}

}  // namespace

Tree::Tree(nb::object api, const nb::handle& tensor_type, nb::callable text_of,
           const nb::handle& value, std::string text)
    : text_of_(std::move(text_of)),
      ordered_dictionary_type_(nb::module_::import_("collections").attr("OrderedDict")),
      text_(std::move(text)) {
  Found found;
  is_known_ = learn(value, tensor_type, found);
  if (!is_known_) return;
  forms_.emplace(std::move(api), found.tensors);
  is_known_ = forms_->fit(found.tensors);
  text_now_ = nb::cast(text_);
}

std::optional<Tree::Kind> Tree::kind_of(const nb::handle& value,
                                        const nb::handle& tensor_type) const {
  if (is_plain(value)) return Kind::leaf;
  if (is_exactly(value, &PyDict_Type)) return Kind::dictionary;
  if (is_exactly(value, &PyList_Type)) return Kind::list;
  if (is_exactly(value, &PyTuple_Type)) return Kind::tuple;
  if (nb::handle(value.type()).is(ordered_dictionary_type_)) return Kind::ordered_dictionary;
  const int is_tensor = PyObject_IsInstance(value.ptr(), tensor_type.ptr());
  if (is_tensor < 0) throw nb::python_error();
  if (is_tensor == 1) return Kind::tensor;
  return std::nullopt;
}

bool Tree::learn(const nb::handle& value, const nb::handle& tensor_type, Found& found) {
  const std::optional<Kind> kind = kind_of(value, tensor_type);
  if (!kind) return false;
  Node& node = nodes_.emplace_back(Node{*kind, nb::borrow(value.type()), {}, 0, 0, {}, 0});
  if (*kind == Kind::tensor) {
    found.tensors.append(value);
    return true;
  }
  if (*kind == Kind::leaf) {
    node.leaf = nb::borrow(value);
    return learn_text(value, &node.offset, &node.length);
  }
  if (*kind == Kind::dictionary || *kind == Kind::ordered_dictionary)
    return learn_dictionary(value, tensor_type, found);
  node.count = nb::len(value);
  for (const nb::handle part : nb::borrow<nb::sequence>(value))
    if (!learn(part, tensor_type, found)) return false;
  return true;
}

bool Tree::learn_dictionary(const nb::handle& value, const nb::handle& tensor_type, Found& found) {
  const std::size_t index = nodes_.size() - 1;
  const nb::object pairs = pairs_of(value);
  bool are_names = true;
  for (const nb::handle pair : nb::borrow<nb::list>(pairs)) {
    const nb::object key = pair[0];
    const bool is_name = is_exactly(key, &PyUnicode_Type);
    if (!is_name && !is_exactly(key, &PyLong_Type)) return false;
    are_names = are_names && is_name;
    nodes_[index].keys.push_back(key);
  }
  nodes_[index].count = nodes_[index].keys.size();
  for (const nb::handle pair : nb::borrow<nb::list>(pairs)) {
    // Keys that are not all names have texts like those of leaves.
    if (!are_names && !learn_text(nb::object(pair[0]), nullptr, nullptr)) return false;
    if (!learn(nb::object(pair[1]), tensor_type, found)) return false;
  }
  return true;
}

// The next that is spelled so is the leaf's own: whatever lies before it, names, keys and
// descriptions of tensors, has no text of a leaf in it, since quotes within strings are escaped.
bool Tree::learn_text(const nb::handle& leaf, std::size_t* offset, std::size_t* length) {
  const auto spelled = nb::cast<std::string>(text_of_(leaf));
  const std::size_t at = text_.find(spelled, learnt_);
  if (at == std::string::npos) return false;
  learnt_ = at + spelled.size();
  if (offset != nullptr) *offset = at;
  if (length != nullptr) *length = spelled.size();
  return true;
}

nb::object Tree::find(const nb::handle& value) {
  if (!is_known_) return nb::none();
  Found found;
  std::size_t next = 0;
  if (!is_like(value.ptr(), next, found) || !forms_->fit(found.tensors)) return nb::none();
  if (!found.changes.empty()) change(found.changes);
  return nb::make_tuple(found.tensors, text_now_);
}

bool Tree::is_like(PyObject* value, std::size_t& next, Found& found) const {
  const std::size_t index = next++;
  const Node& node = nodes_[index];
  if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != node.type.ptr()) return false;
  if (node.kind == Kind::tensor) {
    found.tensors.append(nb::handle(value));
    return true;
  }
  if (node.kind == Kind::leaf) {
    if (!is_same(node.leaf.ptr(), value)) found.changes.emplace_back(index, nb::borrow(value));
    return true;
  }
  const Py_ssize_t count = PyObject_Size(value);
  if (count < 0) throw nb::python_error();
  return static_cast<std::size_t>(count) == node.count && are_like(value, node, next, found);
}

bool Tree::are_like(PyObject* value, const Node& node, std::size_t& next, Found& found) const {
  if (node.kind == Kind::dictionary) {
    Py_ssize_t position = 0;
    PyObject* key = nullptr;
    PyObject* part = nullptr;
    for (std::size_t i = 0; i < node.count; ++i) {
      if (PyDict_Next(value, &position, &key, &part) == 0) return false;
      if (!is_same_key(node.keys[i].ptr(), key) || !is_like(part, next, found)) return false;
    }
    return true;
  }
  if (node.kind == Kind::ordered_dictionary) {
    const nb::object pairs = pairs_of(value);
    for (std::size_t i = 0; i < node.count; ++i) {
      const nb::object pair = pairs[i];
      const nb::object key = pair[0];
      const nb::object part = pair[1];
      if (!is_same_key(node.keys[i].ptr(), key.ptr()) || !is_like(part.ptr(), next, found))
        return false;
    }
    return true;
  }
  for (std::size_t i = 0; i < node.count; ++i) {
    const auto at = static_cast<Py_ssize_t>(i);
    PyObject* part =
        node.kind == Kind::list ? PyList_GetItem(value, at) : PyTuple_GetItem(value, at);
    if (part == nullptr) throw nb::python_error();
    if (!is_like(part, next, found)) return false;
  }
  return true;
}

void Tree::change(const std::vector<Change>& changes) {
  is_known_ = false;  // Until all of it is done: text_of_ may raise, as at ^C.
  std::string text;
  text.reserve(text_.size());
  std::size_t copied = 0;
  auto changed = changes.begin();
  for (std::size_t index = 0; index < nodes_.size(); ++index) {
    Node& node = nodes_[index];
    if (node.kind != Kind::leaf) continue;
    const std::size_t offset = node.offset;
    const std::size_t length = node.length;
    node.offset = offset + text.size() - copied;
    if (changed == changes.end() || changed->first != index) continue;
    text.append(text_, copied, offset - copied);
    copied = offset + length;
    const auto spelled = nb::cast<std::string>(text_of_(changed->second));
    node.offset = text.size();
    node.length = spelled.size();
    node.leaf = changed->second;
    text += spelled;
    ++changed;
  }
  text.append(text_, copied);
  text_ = std::move(text);
  text_now_ = nb::cast(text_);
  is_known_ = true;
}

}  // namespace ckpt::python
