// Command: what the commands of `ckpt` share: how each ends, and what it prints at the end.
//
// A command is a function of its arguments that returns an Outcome. Only run() of command_line.cpp
// prints; so that --json never mixes with words, and an error is told once.
#pragma once

#include <ckpt/result.hpp>
#include <nlohmann/json.hpp>
#include <string>

namespace ckpt::cli {

// Members keep the order in which a person would read them.
using Json = nlohmann::ordered_json;

inline constexpr int exit_ok = 0;
inline constexpr int exit_trouble = 1;    // Something is wrong, and was told.
inline constexpr int exit_wrong_use = 2;  // The command line itself.

struct Outcome {
  std::string text;  // For people; lines that end in a newline.
  Json json;
  bool is_trouble = false;
};

}  // namespace ckpt::cli
