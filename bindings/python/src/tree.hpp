// Tree: nested containers of tensors and plain data that stay much the same from save to save.
//
// It knows the text that one save made of them. At the next save it walks all of it in one call:
// with the same containers, keys and types, and tensors of the same forms, the text is the same but
// for the plain values that changed, a learning rate for instance.
//
// Threads:   whoever has the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensor_probe.hpp"

namespace ckpt::python {

class Tree {
 public:
  // `api` is that of Forms. `text_of(leaf)` is what `text`, which was made of `value`, has for each
  // plain leaf: None, booleans, numbers and strings.
  Tree(nanobind::object api, const nanobind::handle& tensor_type, nanobind::callable text_of,
       const nanobind::handle& value, std::string text);

  // Whether all parts of `value` are of a known kind; else nothing is ever found.
  bool is_known() const { return is_known_; }

  // (tensors in turn, text) of a value that is like the one before; else None.
  nanobind::object find(const nanobind::handle& value);

 private:
  enum class Kind : std::uint8_t { tensor, leaf, dictionary, ordered_dictionary, list, tuple };
  struct Node {
    Kind kind;
    nanobind::object type;
    nanobind::object leaf;               // The newest value of a leaf.
    std::size_t offset = 0, length = 0;  // A leaf's, in the text.
    std::vector<nanobind::object> keys;  // A dictionary's.
    std::size_t count = 0;               // The number of parts.
  };
  using Change = std::pair<std::size_t, nanobind::object>;  // A node, and the leaf that it is now.
  struct Found {
    nanobind::list tensors;
    std::vector<Change> changes;
  };

  // Both return false at a part of an unknown kind, or one that differs.
  bool learn(const nanobind::handle& value, const nanobind::handle& tensor_type, Found& found);
  bool learn_dictionary(const nanobind::handle& value, const nanobind::handle& tensor_type,
                        Found& found);
  bool learn_text(const nanobind::handle& leaf, std::size_t* offset, std::size_t* length);
  std::optional<Kind> kind_of(const nanobind::handle& value,
                              const nanobind::handle& tensor_type) const;
  bool is_like(PyObject* value, std::size_t& next, Found& found) const;
  bool are_like(PyObject* value, const Node& node, std::size_t& next, Found& found) const;
  void change(const std::vector<Change>& changes);

  nanobind::callable text_of_;
  nanobind::object ordered_dictionary_type_;
  std::vector<Node> nodes_;  // Each before its parts.
  std::string text_;
  std::size_t learnt_ = 0;     // How far the text was looked through.
  nanobind::object text_now_;  // As Python has it.
  std::optional<Forms> forms_;
  bool is_known_ = false;
};

}  // namespace ckpt::python
