// LayoutValidation: the checks of one tensor that was read, without the others of its layout.
#pragma once

#include <ckpt/result.hpp>

#include "format/layout.hpp"

namespace ckpt::format {

// `layout` needs no tensors, but valid members. Errors: corruption (a name, a size or a piece that
// cannot be; a place outside of its file).
Status validate_tensor(const Layout& layout, const TensorPlace& tensor);

}  // namespace ckpt::format
