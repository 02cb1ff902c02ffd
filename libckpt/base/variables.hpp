// Variables: the names in the environment that are ours, besides the options of a trainer.
//
// A variable that begins like ours and is not known gets a warning, since a misspelt one would do
// nothing in silence. So each name that some part of us reads stands here.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace ckpt {

inline constexpr std::string_view variable_prefix = "LIBCKPT_";

// DaemonFlag: an option of ckptd, which it also reads from the environment.
struct DaemonFlag {
  const char* name;
  const char* variable;
};
inline constexpr std::array daemon_flags = std::to_array<DaemonFlag>({
    {"--config", "LIBCKPT_DAEMON_CONFIG"},
    {"--runtime-dir", "LIBCKPT_RUNTIME_DIR"},
    {"--memory-budget", "LIBCKPT_MEMORY_BUDGET"},
    {"--listen", "LIBCKPT_LISTEN"},
    {"--idle-limit", "LIBCKPT_IDLE_LIMIT"},
    {"--job-idle-limit", "LIBCKPT_JOB_IDLE_LIMIT"},
    {"--stop-deadline", "LIBCKPT_STOP_DEADLINE"},
    {"--nice", "LIBCKPT_NICE"},
    {"--flush-stalled-after", "LIBCKPT_FLUSH_STALLED_AFTER"},
    {"--verify-every", "LIBCKPT_VERIFY_EVERY"},
    {"--verify-stored", "LIBCKPT_VERIFY_STORED"},
    {"--require-mount", "LIBCKPT_REQUIRE_MOUNT"},
    {"--confine-to", "LIBCKPT_CONFINE_TO"},
    {"--all-cores", "LIBCKPT_ALL_CORES"},
    {"--log-file", "LIBCKPT_DAEMON_LOG_FILE"},
    {"--log-level", "LIBCKPT_LOG_LEVEL"},
    {"--foreground", "LIBCKPT_FOREGROUND"},
});

// Names of the trainer's configuration, the Python package, buckets, and the tests' kill points.
inline constexpr std::array other_variables = std::to_array<std::string_view>({
    "LIBCKPT_CONFIG",
    "LIBCKPT_DEBUG",
    "LIBCKPT_FAILURE_DOMAIN",
    "LIBCKPT_NCCL",
    "LIBCKPT_RAISE_ON_ERROR",
    "LIBCKPT_S3_ADDRESSING",
    "LIBCKPT_GS_ACCESS_KEY_ID",
    "LIBCKPT_GS_ENDPOINT",
    "LIBCKPT_GS_SECRET_ACCESS_KEY",
    "LIBCKPT_POINTS",
    "LIBCKPT_POINTS_LOG",
    "LIBCKPT_POINTS_RELEASE",
});

// Also the names of a daemon's flags that are options of a trainer, too.
constexpr bool is_known_variable(std::string_view name) {
  const auto is_it = [&](const DaemonFlag& flag) { return name == flag.variable; };
  return std::ranges::find(other_variables, name) != other_variables.end() ||
         std::ranges::any_of(daemon_flags, is_it);
}
static_assert(is_known_variable("LIBCKPT_VERIFY_EVERY"));

}  // namespace ckpt
