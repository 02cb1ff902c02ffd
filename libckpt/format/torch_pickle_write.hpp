// TorchPickleWrite: the pickle of a dictionary of tensors, as torch.save would write it.
//
// It names the few functions that torch.load(weights_only=True) allows, and nothing else.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "format/torch_pickle.hpp"

namespace ckpt::format {

// Tensors of one storage share its bytes when they are loaded. All are row-major, and begin where
// their storage begins.
std::vector<std::byte> write_torch_pickle(std::span<const PickledTensor> tensors);

// The pickle of one tensor alone.
std::vector<std::byte> write_torch_tensor(const PickledTensor& tensor);

std::string_view torch_dtype_name(DType dtype);  // "torch.float32".

}  // namespace ckpt::format
