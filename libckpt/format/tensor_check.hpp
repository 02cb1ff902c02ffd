// TensorCheck: whether a layout could have a tensor, for those that are added one by one.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>

#include "format/layout.hpp"

namespace ckpt::format {

// Returns its bytes. The tensor is tied to no other. Errors: those of make_layout for one tensor.
Result<std::uint64_t> check_tensor(const TensorSpec& tensor);

}  // namespace ckpt::format
