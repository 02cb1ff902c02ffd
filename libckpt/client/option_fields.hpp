// OptionFields: the one list of all options: the name, how a text sets it, how it is shown.
//
// The environment, the file and `explain` all go through it.
#pragma once

#include <ckpt/options.hpp>
#include <ckpt/result.hpp>
#include <span>
#include <string>
#include <string_view>

namespace ckpt::client {

struct OptionField {
  std::string_view name;
  Status (*parse)(Options& options, std::string_view text);
  std::string (*show)(const Options& options);
};

std::span<const OptionField> option_fields();
const OptionField* find_option_field(std::string_view name);  // Null: there is none.

// OptionProblem: the fault of the values, alone or together. Empty name: none.
struct OptionProblem {
  std::string_view name;
  std::string text;  // "must be below world_size, which is 4".
};
OptionProblem find_problem(const Options& options);

}  // namespace ckpt::client
