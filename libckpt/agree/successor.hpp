// Successor: the rules for two successive decrees of one coordinator, which only a bug can break.
// Decrees of other nodes are input, and nothing is asserted about them.
#pragma once

#include "format/agreement.hpp"

namespace ckpt::agree {

// No timeline is forgotten, and no newer Start gives way to an older one. While the Start stays the
// same, committed and stored steps stay so. A turn of a flush's part keeps its node.
bool is_successor(const format::Decree& before, const format::Decree& after);

}  // namespace ckpt::agree
