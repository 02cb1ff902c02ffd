// Landlock: which version of it the kernel has. Nothing here uses it (docs/decisions/0022).
#pragma once

namespace ckpt::os {

// From 1; 0: it has none, or it is switched off.
int landlock_version();

}  // namespace ckpt::os
