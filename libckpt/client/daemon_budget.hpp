// DaemonBudget: notices that a running daemon has another memory budget than a trainer asks for.
//
// The trainer that starts a daemon sets its budget; for those that find it, the option is without
// effect, and they are warned.
#pragma once

#include <ckpt/options.hpp>
#include <string>
#include <string_view>

namespace ckpt::client {

// By the daemon's ready-file. Empty: the budget is the same, no option names one, or the file
// does not say (it is of an older version).
std::string other_budget(const Options& options, std::string_view ready);

}  // namespace ckpt::client
