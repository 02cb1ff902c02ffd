// Doubt: the words for a job that finds nothing in its directory, and had another one before.
#pragma once

#include <string_view>

namespace ckpt::format {

// The daemon writes it behind `nothing_seen`, and the trainer's side makes a warning of it. That
// the directory was made just now is no reason for one: so it is at each first start.
inline constexpr std::string_view job_was_elsewhere = "this daemon had the job before in";

}  // namespace ckpt::format
