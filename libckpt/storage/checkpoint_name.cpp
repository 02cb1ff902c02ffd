#include "storage/checkpoint_name.hpp"

#include "storage/step_directory.hpp"

namespace ckpt::storage {

std::string checkpoint_name(Step step) {
  return step_directory_name(step);
}

std::optional<Step> step_named(std::string_view name) {
  const auto parsed = parse_step_directory(name);
  return parsed ? std::optional(parsed->step) : std::nullopt;
}

bool is_of_run(std::string_view name) {
  return name == private_directory_name || name == latest_name;
}

}  // namespace ckpt::storage
