// Completion: scripts by which a shell completes the commands of `ckpt` and their options.
//
// They are made from the parser itself, so that they know what it knows.
#pragma once

#include <CLI/CLI.hpp>
#include <ckpt/result.hpp>
#include <string>

namespace ckpt::cli {

// `shell`: "bash" or "zsh". Errors: invalid_argument.
Result<std::string> completion_script(const CLI::App& app, const std::string& shell);

}  // namespace ckpt::cli
