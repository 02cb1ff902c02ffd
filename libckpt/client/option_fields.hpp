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

// For captures, zero is not taken for never: it is refused.
constexpr bool is_zero(const Interval& interval) {
  return interval.steps == 0 && interval.time.count() == 0;
}
inline constexpr std::string_view no_captures =
    "no step would ever be due: expected steps from 1, a duration such as 60s, or never";

// OptionProblem: the fault of the values, alone or together. Empty name: none.
struct OptionProblem {
  std::string_view name;
  std::string text;  // "must be below world_size, which is 4".
};
OptionProblem find_problem(const Options& options);

}  // namespace ckpt::client
