// ThreadSettings: the name of the calling thread, and how little of the processor it claims.
#pragma once

#include <ckpt/result.hpp>
#include <string_view>

namespace ckpt::os {

// Cut to the 15 characters that the kernel keeps.
void set_thread_name(std::string_view name);

// The calling thread, and those that it starts from now on, run with this nice, or their own if
// that is higher. A process that leads a session lowers the session as well: kernels that share the
// processor out by sessions (autogroup) compare nice only within one.
// Errors: io; what was refused stays as it was.
Status give_way(int nice);

}  // namespace ckpt::os
