// Cores: on which of the machine's cores threads run.
#pragma once

#include <sys/types.h>

#include <bitset>
#include <ckpt/result.hpp>
#include <string>

namespace ckpt::os {

// As many as Linux can be built for (NR_CPUS).
inline constexpr std::size_t cores_max = 8192;
using CoreSet = std::bitset<cores_max>;

// Where a thread may run; 0: the calling one. The number of a process means its first thread.
// Errors: not_found (it has ended), io.
Result<CoreSet> cores_of(pid_t thread);

// The calling thread, and those that it starts from now on, may run on every core that the kernel
// lets the process have, whatever it was started on. Errors: io.
Status use_all_cores();

// Every thread of this process, and those that they start from now on, run on these, of which the
// kernel takes those that the process may have.
// Errors: io (it may have none of them), unavailable (threads start faster than they are bound).
Status bind_threads(const CoreSet& cores);

// As the kernel writes it: "0-3,8".
std::string to_text(const CoreSet& cores);

}  // namespace ckpt::os
