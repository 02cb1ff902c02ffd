// Successor: what holds of two decrees of one coordinator, one after the other, unless there is a
// bug. A decree of another node is input, of which nothing is claimed.
#pragma once

#include "format/agreement.hpp"

namespace ckpt::agree {

// No timeline is forgotten, and no newer Start gives way to an older one. While the Start stays the
// same, what is committed or stored stays so. A turn of a flush's part keeps its node.
bool is_successor(const format::Decree& before, const format::Decree& after);

}  // namespace ckpt::agree
