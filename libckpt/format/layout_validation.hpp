// LayoutValidation: the checks of a layout that was read: whole, or one tensor without the others.
#pragma once

#include <ckpt/result.hpp>

#include "format/layout_types.hpp"

namespace ckpt::format {

// For layouts from a disk or a peer: checks everything about a result of make_layout that readers
// rely on. Errors: corruption.
Status validate(const Layout& layout);
// The same without the tensors.
Status validate_members(const Layout& layout);

// `layout` needs no tensors, but valid members. Errors: corruption (a name, a size or a piece that
// cannot be; a place outside of its file).
Status validate_tensor(const Layout& layout, const TensorPlace& tensor);

}  // namespace ckpt::format
