// Command: the result that every command of `ckpt` returns.
//
// A command is a function from its arguments to an Outcome. Only run() in command_line.cpp prints,
// so that --json output contains nothing else and an error is printed once.
#pragma once

#include <ckpt/result.hpp>
#include <nlohmann/json.hpp>
#include <string>

namespace ckpt::cli {

// Members keep their order, which is chosen for people.
using Json = nlohmann::ordered_json;

inline constexpr int exit_ok = 0;
inline constexpr int exit_trouble = 1;    // Something is wrong, and was reported.
inline constexpr int exit_wrong_use = 2;  // The command line itself is wrong.

struct Outcome {
  std::string text;  // For people; lines that end in a newline.
  Json json;
  bool is_trouble = false;
  bool is_verbatim = false;  // The text is for a program: its lines stay as they are.
};

}  // namespace ckpt::cli
