// Tensor probe: finds kinds and places of tensors, thousands of them in one call.
//
// PyTorch answers through the C functions of DLPack's exchange API, without making an object of
// Python. Tensors without such functions are asked by Python, one by one.
//
// Threads:   whoever has the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ckpt::python {

// Type, shape and order of the bytes, and where they are.
struct Look {
  const void* data = nullptr;
  std::int32_t device_type = 0;
  std::int32_t device_index = 0;
  std::uint32_t type = 0;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // Empty: contiguous.
};

// The form of tensors, to compare with that of others later.
class Forms {
 public:
  // `api` is the capsule that PyTorch's Tensor has; with anything else nothing ever fits.
  Forms(nanobind::object api, const nanobind::list& tensors);

  // Whether these are as many tensors, of the same types, shapes and orders in turn.
  bool fit(const nanobind::list& tensors) const;

 private:
  nanobind::object api_;
  std::vector<Look> looks_;
  bool is_known_ = false;
};

// The places of tensors, which it does not keep alive; None: it has no place.
class Places {
 public:
  Places(nanobind::object api, const nanobind::list& tensors);

  // The indices, among as many tensors, of those that may lie elsewhere than the first ones, or in
  // another form.
  std::vector<std::size_t> moved(const nanobind::list& tensors) const;

 private:
  // Also where it does not say.
  bool is_negated(const Look& look, const nanobind::handle& tensor) const;

  nanobind::object api_;
  nanobind::str is_neg_;
  std::vector<Look> looks_;
};

// Where those of `parts` lie that are tensors: for each its address and its bytes, as native 64-bit
// numbers one behind the other. None: one of them does not give it so.
nanobind::object memory_of(const nanobind::object& api, const nanobind::handle& tensor_type,
                           const nanobind::list& parts);

}  // namespace ckpt::python
