// StatusText: what `ckpt status` prints of the daemon's answer.
#pragma once

#include <string>

#include "cli/command.hpp"

namespace ckpt::cli {

std::string to_text(const Json& status);
// A job is degraded, or lacks trainers.
bool has_trouble(const Json& status);

}  // namespace ckpt::cli
