// DaemonEnvironment: what a running daemon has in its environment, next to that of this shell.
//
// A daemon keeps the environment of the trainer that started it. A person sees another one.
#pragma once

#include <string>
#include <vector>

#include "bucket/environment.hpp"

namespace ckpt::cli {

// The variables that lead to buckets and that differ: "AWS_REGION is not set", never their values.
// `theirs`: the daemon's, as /proc/PID/environ has it: texts "NAME=value", each with a 0 behind it.
std::vector<std::string> differing_variables(const std::string& theirs,
                                             const bucket::Environment& ours);

}  // namespace ckpt::cli
