// Confinement: what --confine-to lets this daemon change: the named directories, and its own files.
#pragma once

#include <ckpt/result.hpp>
#include <vector>

#include "daemon/daemon_options.hpp"
#include "os/confined_file_system.hpp"

namespace ckpt::daemon {

// Nothing while --confine-to is not given. Else the kernel holds this process to these directories,
// the runtime directory and the log, which exist. Logs what it means. Before any thread is started,
// because a thread that runs already stays free.
// Errors: unsupported (the kernel has no Landlock that is good enough), invalid_argument (a
// directory that is not there), io.
Result<std::vector<os::ConfinedTo>> confine(const DaemonOptions& options);

}  // namespace ckpt::daemon
