// LogLevelText: the levels of the log by their names, and the variable that chooses one.
//
// The variable is read when the program starts or loads libckpt.
#pragma once

#include <optional>
#include <string_view>

#include "base/log.hpp"

namespace ckpt {

inline constexpr const char* log_level_variable = "LIBCKPT_LOG_LEVEL";

std::optional<LogLevel> log_level_named(std::string_view name);

// Logs a warning, once per process, if the variable names no level: `info` counts then. On the
// program's thread, since it reads the environment.
void warn_of_unknown_log_level();

}  // namespace ckpt
