// Cores: the processor cores on which threads run.
#pragma once

#include <sys/types.h>

#include <bitset>
#include <ckpt/result.hpp>
#include <string>

namespace ckpt::os {

// The most cores for which Linux can be built (NR_CPUS).
inline constexpr std::size_t cores_max = 8192;
using CoreSet = std::bitset<cores_max>;

// The cores on which a thread may run; 0: the calling thread. A process id means its first thread.
// Errors: not_found (it has ended), io.
Result<CoreSet> cores_of(pid_t thread);

// Lets the calling thread, and all threads it starts from now on, run on every core that the kernel
// allows this process, even if it was started on fewer. Errors: io.
Status use_all_cores();

// Binds every thread of this process, and all threads they start from now on, to `cores`. The
// kernel drops cores that the process may not use. Errors: io (the process may use none of them),
// unavailable (threads start faster than they are bound).
Status bind_threads(const CoreSet& cores);

// In the kernel's notation: "0-3,8".
std::string to_text(const CoreSet& cores);

}  // namespace ckpt::os
