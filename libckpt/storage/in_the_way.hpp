// InTheWay: what a person does about a step whose manifest this program cannot take, where a whole
// copy of the step is to come.
#pragma once

#include <ckpt/result.hpp>
#include <string>

namespace ckpt::storage {

// `path`: the step's directory, as it is shown. Empty: nothing, since a newer version of libckpt
// wrote it, and it may be good.
std::string how_to_move_away(const Error& problem, const std::string& path, bool is_in_bucket);

}  // namespace ckpt::storage
