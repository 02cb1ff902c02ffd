// LeftPartials: the hidden files that an export writes, and what killed ones have left of them.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "base/clock.hpp"
#include "os/file_system.hpp"

namespace ckpt::cli {

// An export writes each of its buffers within minutes.
inline constexpr Duration partial_left_after = std::chrono::hours(1);

std::string partial_name(std::string_view name, std::uint64_t attempt);  // `.NAME.HEX.partial`.

// Whether the file of this name is of the export that asks.
using IsOurs = std::function<bool(std::string_view name)>;
// Removes the files of attempts none of whose files has changed for `partial_left_after`, by the
// file system's clock and `now`. Younger ones stay, with a warning: an export on another machine,
// whose lock is not seen here, may still write them.
Task<void> remove_left_partials(os::FileSystem& files, std::string directory, IsOurs is_ours,
                                std::chrono::system_clock::time_point now);

// For people. In the working directory, as they would write it.
std::string shown_path(std::string_view path);

}  // namespace ckpt::cli
