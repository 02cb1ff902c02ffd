// CommandLine: reads the arguments of `ckpt`, runs one command, prints its outcome.
#pragma once

namespace ckpt::cli {

// Returns the exit code: 0 all is well, 1 trouble was found, 2 wrong use.
int run(int count, const char* const* arguments);

}  // namespace ckpt::cli
