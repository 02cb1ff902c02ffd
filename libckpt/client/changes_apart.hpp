// ChangesApart: the order of tensors by which those that change from step to step share few Chunks
// with those that stay.
//
//   header | whole pages: what changes, what stays | small: what stays, what changes | blobs
//
// A Layout keeps the order in which tensors are given, but for their sizes (format.md). With
// skip_unchanged, Chunks without a change are not sent again. So what changes lies at both ends,
// where the header and the blobs change as well.
#pragma once

#include <vector>

#include "format/layout.hpp"

namespace ckpt::client {

// Parallel to the specs: whether each tensor changes from step to step.
using Changes = std::vector<bool>;

// The same specs in the order for make_layout. Where all change, or none does, the Layout is the
// one that they make as they are.
std::vector<format::TensorSpec> with_changes_apart(std::vector<format::TensorSpec> specs,
                                                   const Changes& changes);

}  // namespace ckpt::client
